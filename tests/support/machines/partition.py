"""A host of its own for a process, in a network namespace, whose link can lose every packet. Needs root and iproute2."""

from __future__ import annotations

import os
import subprocess

_NOBODY = "02:00:00:00:00:99"
"""An address that no interface has: what is sent there is lost, as on a cut line, and nobody is told."""


class Partition:
    """A namespace and a link to it; made on entering, removed on leaving. `wrapper` goes before a command."""

    def __init__(self) -> None:
        number = os.getpid() % 16_000
        self._name = f"lb{number}"
        self._links = (f"lbh{number}", f"lbg{number}")
        network = f"10.213.{number >> 6 & 255}"
        base = (number & 63) << 2
        self.host, self.guest = f"{network}.{base + 1}", f"{network}.{base + 2}"
        self.wrapper = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Partition:
        ours, theirs = self._links
        _ip("netns", "add", self._name)
        try:
            _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self._name)
            for link, address, at in ((ours, self.host, ()), (theirs, self.guest, ("-n", self._name))):
                _ip(*at, "addr", "add", f"{address}/30", "dev", link)
                _ip(*at, "link", "set", link, "up")
            _ip("-n", self._name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        ours, _ = self._links  # with its namespace it would go later, and the next one's has the same name
        subprocess.run(["ip", "link", "del", ours], check=False, capture_output=True)  # or was never made
        _ip("netns", "del", self._name)

    def cut(self) -> None:
        """From now on every packet is lost, in both directions."""
        ours, theirs = self._links
        for link, address, at in ((ours, self.guest, ()), (theirs, self.host, ("-n", self._name))):
            _ip(*at, "neigh", "replace", address, "lladdr", _NOBODY, "dev", link, "nud", "permanent")

    def mend(self) -> None:
        """Packets arrive again."""
        ours, theirs = self._links
        for link, address, at in ((ours, self.guest, ()), (theirs, self.host, ("-n", self._name))):
            _ip(*at, "neigh", "del", address, "dev", link)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
