"""A container file's instructions carried out without an engine: each stage in a root of Debian's packages in place of its base image.

Debian 12 has the Python that python:3.11-slim-bookworm has, under /usr instead of /usr/local.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from lakebroker_testing.gateway import ROOT
from tests.support.machines.bare_root import BareRoot
from tests.support.machines.containerfiles import Instruction, command_of, environment, instructions, the

_BASE = ("python3", "python3-venv", "ca-certificates")
_SAID_ALREADY = {"ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"}
"""Of how it is run."""


class ContainerRoot:
    """What `file` makes, in `folder`. Needs root. Raises ProcessError or AssertionError with what a step said."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._file, self._said = file, folder / "build.log"
        folder.mkdir()
        every = instructions(file)
        before: BareRoot | None = None
        for stage in range(every[-1].stage + 1):
            root = BareRoot(folder / str(stage), "bookworm", _BASE)
            for name in ("python", "python3"):
                root.within(Path("/usr/local/bin") / name).symlink_to("/usr/bin/python3.11")
            workdir = Path("/")
            for each in (instruction for instruction in every if instruction.stage == stage):
                workdir = self._done(each, root, workdir, before)
            before = root
        self.root = root
        """Of the last stage."""
        self.workdir = workdir

    def script(self, text: str) -> str:
        """`text` with the environment and the folder of the image, and in `$as` how its user is taken: `$as $entry …` is its entry
        point, `$as $health` its health check."""
        user, group = the(self._file, "USER").split(":")
        variables = environment(self._file) | {
            "HOME": str(self.workdir),
            "as": f"setpriv --reuid {user} --regid {group} --clear-groups --bounding-set=-all --no-new-privs",
            "entry": shlex.join(command_of(the(self._file, "ENTRYPOINT"))),
        }
        exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        check = shlex.join(command_of(the(self._file, "HEALTHCHECK")))
        return f"{exported}cd {self.workdir}\nhealth() {{ $as {check}; }}\n{text}"

    def _done(self, each: Instruction, root: BareRoot, workdir: Path, before: BareRoot | None) -> Path:
        if each.name == "WORKDIR":
            workdir = Path(each.rest)
            root.within(workdir).mkdir(parents=True, exist_ok=True)
        elif each.name == "RUN":
            status = root.run(f"cd {workdir}\n{each.rest}\n", self._said)
            assert status == 0, f"RUN {each.rest}: {self._said.read_text()[-3000:]}"
        elif each.name == "COPY" and each.rest.startswith("--from=build "):
            assert before is not None
            _, source, to = each.rest.split()
            shutil.copytree(before.within(Path(source)), root.within(Path(to)), symlinks=True)
        elif each.name == "COPY":
            *sources, to = each.rest.split()
            assert to == "./" or sources == [to], each.rest
            archive = subprocess.run(
                ["git", "-C", str(ROOT), "archive", "HEAD", *sources], capture_output=True, check=True
            )
            subprocess.run(["tar", "-x", "-C", str(root.within(workdir))], input=archive.stdout, check=True)
        else:
            assert each.name in _SAID_ALREADY | {"FROM"}, each.name
        return workdir
