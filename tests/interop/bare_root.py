"""A root of Debian packages alone, made by mmdebstrap, in which commands run: with this machine's network and its way to the registries, nothing else of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lakebroker_testing.gateway import ProcessError

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
        done = subprocess.run(made, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProcessError(f"{' '.join(made)}: {done.stderr[-3000:]}")
        for path in _TO_REGISTRIES:
            if path.exists():
                copy = self._within(
                    Path("/root") / path.relative_to(_HOME) if path.is_relative_to(_HOME) else path
                )
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)

    def run(self, script: str, said: Path) -> int:
        """The status of a shell script in /root, whose output goes to `said`; all that it started ends with it."""
        folder = self.folder
        enter = f"""set -e
mount --make-rprivate /
mount -t proc proc {folder}/proc
mount --rbind /dev {folder}/dev
exec chroot {folder} /bin/sh -c 'cd /root && exec sh -e'"""
        pip = {name: value for name, value in os.environ.items() if name in ("PIP_CERT", "PIP_INDEX_URL")}
        with said.open("wb") as out:
            return subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", enter],
                input=script.encode(),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PATH": _PATH, "HOME": "/root", **pip},
                check=False,
            ).returncode

    def _within(self, path: Path) -> Path:
        return self.folder / path.relative_to("/")
