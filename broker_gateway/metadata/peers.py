"""The other brokers of this host: names and ports, from the file that the supervisor keeps.

Owns nothing but what the file says; `refresh` reads it again when it changed. A broker whose process is down is
not in it, as a name server would leave it out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)


class Peer(NamedTuple):
    """A broker on this host."""

    name: str
    grpc_port: int
    remoting_port: int = 0


class Peers:
    """The peers of the broker `own_name`; none without a file."""

    def __init__(self, file: Path | None, own_name: str) -> None:
        self._file = file
        self._own_name = own_name
        self._seen: tuple[int, int] | None = None
        self.all: tuple[Peer, ...] = ()

    def refresh(self) -> None:
        """Reads the file if it changed. A file that cannot be read leaves what was known."""
        if self._file is None:
            return
        try:
            status = self._file.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen == self._seen:
                return
            listed = [
                Peer(str(each["name"]), int(each["grpc"]), int(each.get("remoting", 0)))
                for each in json.loads(self._file.read_text())
            ]
        except FileNotFoundError:
            return  # the supervisor has not written it yet
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("the list of peers cannot be read", file=str(self._file), error=str(error))
            return
        self._seen = seen
        self.all = tuple(sorted(peer for peer in listed if peer.name != self._own_name))
        log.info("peers", brokers=[peer.name for peer in self.all])
