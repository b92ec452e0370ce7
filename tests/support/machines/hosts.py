"""Hosts for processes: each a network namespace on one switch, where the folders of all other hosts are absent.

Needs root and iproute2. The switch is a namespace too, so that no rule of this machine's firewall counts.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from pathlib import Path

from lakebroker_testing.gateway import ProcessError
from tests.support.machines.processes import runs
from tests.support.waiting import LIMIT_S

_ALONE = """set -e
mount --bind "$3" "$1"
mount -t tmpfs -o size=1m,mode=755 tmpfs "$2"
mkdir "$3"
mount --bind "$1" "$3"
umount "$1"
shift 3
exec "$@"
"""
"""In the mount namespace that `ip netns exec` makes: of all hosts' folders ($2) its own ($3) stays, by way of $1."""
_MOST = 200


class Host:
    """A namespace with an address. `wrapper` goes before a command; `folder` is the only one of all hosts' that it sees."""

    def __init__(
        self, name: str, namespace: str, address: str, folder: Path, wrapper: tuple[str, ...]
    ) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self.wrapper = wrapper
        self.namespace = namespace

    def sees(self, path: Path) -> bool:
        """Whether a file is there for its processes."""
        return subprocess.run([*self.wrapper, "test", "-e", str(path)], check=False).returncode == 0

    def processes(self) -> list[int]:
        """Ids of its processes."""
        return [int(each) for each in _ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """SIGKILL for all its processes, as a host that is gone; who started them collects them."""
        until = time.monotonic() + LIMIT_S
        while found := [each for each in self.processes() if runs(each)]:
            if time.monotonic() > until:
                raise ProcessError(f"processes {found} of host {self.name} do not end")
            for each in found:
                try:
                    os.kill(each, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it ended meanwhile
            time.sleep(0.05)


_MADE = itertools.count()


class Hosts:
    """Hosts whose folders are in `folder`, made on entering and by `add`, removed on leaving with what runs there."""

    def __init__(self, folder: Path) -> None:
        # of a namespace that was deleted the kernel removes the links in its own time: none has the name of one before
        number = (os.getpid() + next(_MADE) * 7919) % 65_536
        self._prefix = f"lb{number:x}"
        self._switch = f"{self._prefix}s"
        self._network = f"10.{214 + (number >> 8 & 15)}.{number & 255}"
        self._all, self._stage = folder / "hosts", folder / "stage"
        self._hosts: list[Host] = []
        self.address = f"{self._network}.1"
        """Of this process, which sees all folders."""

    def __enter__(self) -> Hosts:
        for each in (self._all, self._stage):
            each.mkdir()
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            own = f"{self._prefix}h"
            self._plug(own, "test")
            _ip("addr", "add", f"{self.address}/24", "dev", own)
            _ip("link", "set", own, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._hosts:
            each.kill()
        if Path(f"/sys/class/net/{self._prefix}h").exists():
            _ip("link", "del", f"{self._prefix}h")
        there = {line.split()[0] for line in _ip("netns", "list").splitlines() if line}
        for name in [*(each.namespace for each in self._hosts), self._switch]:
            if name in there:
                _ip("netns", "del", name)  # its links go with it

    def add(self, name: str) -> Host:
        """A host with a new folder."""
        number = len(self._hosts) + 2
        assert number < _MOST
        namespace, folder = f"{self._prefix}n{number}", self._all / name
        folder.mkdir()
        alone = ("sh", "-c", _ALONE, "host", str(self._stage), str(self._all), str(folder))
        wrapper = ("ip", "netns", "exec", namespace, *alone)
        host = Host(name, namespace, f"{self._network}.{number}", folder, wrapper)
        _ip("netns", "add", namespace)
        self._hosts.append(host)
        link = f"{self._prefix}g{number}"
        self._plug(link, f"host{number}")
        _ip("link", "set", link, "netns", namespace)
        _ip("-n", namespace, "addr", "add", f"{host.address}/24", "dev", link)
        for each in (link, "lo"):
            _ip("-n", namespace, "link", "set", each, "up")
        return host

    def _plug(self, link: str, port: str) -> None:
        """A link of this machine's, whose other end is a port of the switch."""
        _ip("link", "add", link, "type", "veth", "peer", "name", port, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")


def _ip(*arguments: str) -> str:
    """What it says. Raises ProcessError."""
    try:
        return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise ProcessError(
            f"ip {' '.join(arguments)}: {said}; these tests make network namespaces, for which they need root "
            "(CAP_SYS_ADMIN, CAP_NET_ADMIN) and iproute2"
        ) from error
