"""Which logs are read, and how a target is opened: a store's folder, or a gateway's log service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from store.errors import StoreError
from store.log.erased import Offsets
from store.log_source import CHUNK_BYTES, FolderLog, LogSource, LogState
from structured_streaming.errors import SameBrokerError, SourceError
from structured_streaming.source.access import Access
from structured_streaming.source.addresses import addresses
from structured_streaming.source.name_servers import name_servers
from structured_streaming.source.remote import BrokerLog


class StoreFolder:
    """A `FolderLog` whose errors are SourceErrors that name the folder."""

    def __init__(self, folder: str) -> None:
        self.address = folder
        if not Path(folder).exists():
            raise SourceError(f"store {folder} does not exist; give the folder of a store")
        with self._translated():
            self._log = FolderLog(folder)

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        with self._translated():
            return self._log.describe(wait_ms, after)

    def split(self, log_id: str, start: int, end: int, max_bytes: int, limit_bytes: int = 0) -> list[int]:
        with self._translated():
            return self._log.split(log_id, start, end, max_bytes, limit_bytes)

    def read(
        self, log_id: str, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        with self._translated():
            yield from self._log.read(log_id, start, end, chunk_bytes)

    def erased(self, log_id: str) -> Offsets:
        with self._translated():
            return self._log.erased(log_id)

    def report(self, log_id: str, offset: int) -> None:
        self._log.report(log_id, offset)

    def close(self) -> None:
        self._log.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (StoreError, OSError) as error:
            raise SourceError(f"store {self.address}: {error}") from error


def open_log(target: str, access: Access) -> LogSource:
    """The log at a target as options name it: `store:FOLDER` or `broker:HOST:PORT`; the caller closes it."""
    kind, _, address = target.partition(":")
    return StoreFolder(address) if kind == "store" else BrokerLog(address, access)


def targets(options: Mapping[str, str]) -> list[str]:
    """Targets named by the options `store` and `brokers`, both lists divided by commas. Raises SourceError."""
    named = [f"store:{part.strip()}" for part in options.get("store", "").split(",") if part.strip()]
    named += [f"broker:{each}" for each in addresses(options.get("brokers", "").split(","), "brokers")]
    if not named and not name_servers(options):
        raise SourceError("no log to read: set the option store (folders), brokers (host:port,…) or namesrv")
    return named


def by_broker(states: Mapping[str, LogState]) -> dict[str, tuple[str, LogState]]:
    """Target and state by broker name. Raises SameBrokerError for a name that two have."""
    found: dict[str, tuple[str, LogState]] = {}
    for target, state in states.items():
        other, known = found.setdefault(state.broker, (target, state))
        if other == target:
            continue
        both = f"{other.partition(':')[2]} and {target.partition(':')[2]}"
        if known.log_id == state.log_id:
            raise SameBrokerError(f"{both} are one log (broker {state.broker!r}), given twice; give it once")
        raise SameBrokerError(
            f"{both} are both broker {state.broker!r}: brokers that share a lake each need a brokerName of their own "
            "before their first start, for a store keeps its name; read one of them into another lake"
        )
    return found
