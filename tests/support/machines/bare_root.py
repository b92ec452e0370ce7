"""A root of Debian packages alone, made by mmdebstrap, in which commands run: with this machine's network and its way to the registries, nothing else of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lakebroker_testing.gateway import ProcessError
from lakebroker_testing.programs import output_of

_HOME = Path.home()
_TO_REGISTRIES = (
    Path("/etc/resolv.conf"),
    Path("/etc/hosts"),
    Path("/etc/pip.conf"),
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/ssl/certs/java/cacerts"),
    _HOME / ".config/pip/pip.conf",
    _HOME / ".m2/settings.xml",
)
"""Of this machine: how names are resolved, whose certificates count, which mirrors are asked."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BareRoot:
    """Debian's `packages` and what they depend on, in `folder`. Needs root."""

    def __init__(self, folder: Path, release: str, packages: Sequence[str]) -> None:
        """Raises ProcessError with what mmdebstrap says."""
        if shutil.which("mmdebstrap") is None:
            raise ProcessError("mmdebstrap is not on the PATH: apt-get install mmdebstrap")
        self.folder = folder
        made = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", release, str(folder)]
        output_of(made)
        for path in _TO_REGISTRIES:
            if path.exists():
                copy = self.within(
                    Path("/root") / path.relative_to(_HOME) if path.is_relative_to(_HOME) else path
                )
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)

    def run(self, script: str, said: Path, *, writable: Path | None = None, network: bool = True) -> int:
        """The status of a shell script in /root, whose output goes to `said`; all that it started ends with it.

        Where `writable` is given, it and /tmp are all that can be written to. Without `network` there is an own loopback alone.
        """
        folder = self.folder
        lines = [
            "set -e",
            "mount --make-rprivate /",
            f"mount -t proc proc {folder}/proc",
            f"mount --rbind /dev {folder}/dev",
        ]
        if writable is not None:
            kept = self.within(writable)
            lines += [
                f"mount -t tmpfs tmpfs {folder}/tmp",
                f"mount --bind {kept} {kept}",
                f"mount --rbind {folder} {folder}",
                f"mount -o remount,bind,ro {folder}",
            ]
        if not network:
            lines.append("ip link set lo up")
        lines.append(f"exec chroot {folder} /bin/sh -c 'cd /root && exec sh -e'")
        own = ["--mount", "--pid", *([] if network else ["--net"])]
        pip = {name: value for name, value in os.environ.items() if name in ("PIP_CERT", "PIP_INDEX_URL")}
        with said.open("wb") as out:
            return subprocess.run(
                ["unshare", *own, "--fork", "--kill-child", "/bin/sh", "-c", "\n".join(lines)],
                input=script.encode(),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PATH": _PATH, "HOME": "/root", **pip},
                check=False,
            ).returncode

    def within(self, path: Path) -> Path:
        """Where an absolute path of the root is on this machine."""
        return self.folder / path.relative_to("/")
