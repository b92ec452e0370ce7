"""What the name server's requests work on: routes, KV table, options, and the files of the last two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from broker_gateway.nameserver.brokers import MinBrokerIdChange
from broker_gateway.nameserver.config import NameServerConfig
from broker_gateway.nameserver.kv_config import KVConfig
from broker_gateway.nameserver.lost_brokers import LostBrokers
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.runtime.errors import HostError
from broker_gateway.runtime.files import write_whole
from broker_gateway.runtime.shielded import shielded

log = structlog.get_logger(__name__)


class State:
    """`clock` gives ms; `notify` is told changes of a least broker id. Raises HostError for an unusable KV file."""

    def __init__(
        self,
        config: NameServerConfig,
        clock: Callable[[], int],
        notify: Callable[[MinBrokerIdChange], None],
    ) -> None:
        self.config = config
        self.clock = clock
        self.started_at = clock()
        self.routes = RouteTable(clock, later=lambda: self.lost_brokers.go_on())
        self.lost_brokers = LostBrokers(self.routes, self.notify)
        self.kv = load_kv_config(config.namesrv.kv_config_path)
        self._notify = notify
        self._writing = asyncio.Lock()

    def notify(self, changes: list[MinBrokerIdChange]) -> None:
        """Passes changes on when `notifyMinBrokerIdChanged` is on."""
        if self.config.namesrv.notify_min_broker_id_changed:
            for change in changes:
                self._notify(change)

    async def change_kv(self, change: Callable[[KVConfig], KVConfig]) -> None:
        """Another KV table: in the file first; done to its end, also when the client goes away. Raises RequestError."""
        await shielded(self._change_kv(change))

    async def _change_kv(self, change: Callable[[KVConfig], KVConfig]) -> None:
        async with self._writing:
            changed = change(self.kv)
            await _write(self.config.namesrv.kv_config_path, changed.encode(), "kvConfigPath")
            self.kv = changed

    async def change_config(self, change: Callable[[NameServerConfig], NameServerConfig]) -> None:
        """Other options: in the file first; done to its end, also when the client goes away. Raises RequestError."""
        await shielded(self._change_config(change))

    async def _change_config(self, change: Callable[[NameServerConfig], NameServerConfig]) -> None:
        async with self._writing:
            changed = change(self.config)
            text = "".join(f"{name}={value}\n" for name, value in sorted(changed.options().items()))
            await _write(changed.namesrv.config_store_path, text, "configStorePath")
            self.config = changed


async def _write(path: Path, text: str, option: str) -> None:
    try:
        await asyncio.to_thread(write_whole, path, text)
    except OSError as error:
        log.error("a file cannot be written", path=str(path), error=str(error))
        raise RequestError(
            f"{path} cannot be written: {error.strerror}; nothing was changed ({option})"
        ) from error


def load_kv_config(path: Path) -> KVConfig:
    """The table in the file; empty when there is none. Raises HostError."""
    try:
        found = KVConfig.decode(path.read_bytes())
    except FileNotFoundError:
        return KVConfig()
    except (OSError, BodyError) as error:
        raise HostError(
            f"kvConfigPath {path} cannot be used: {error}; restore it, for example from {path}.bak, or move it away"
        ) from error
    log.info("KV table loaded", path=str(path))
    return found
