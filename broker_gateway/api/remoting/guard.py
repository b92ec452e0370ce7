"""Which requests are taken from this machine only."""

from __future__ import annotations

import structlog

from broker_gateway.remoting.address import is_loopback
from broker_gateway.remoting.codes import RequestCode, ResponseCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.connection import Answer, Connection, Processor, Processors
from broker_gateway.remoting.errors import RequestError

log = structlog.get_logger(__name__)


class Guard:
    """Registers processors: `open` to all, or to loopback only unless `lakeRemoteAdmin` is on (`remote`)."""

    def __init__(self, processors: Processors, *, remote: bool) -> None:
        self._processors = processors
        self._remote = remote

    def open(self, code: RequestCode, processor: Processor) -> None:
        self._processors.register(code, processor)

    def split(self, code: RequestCode, whole: Processor, public: Processor) -> None:
        """`whole` for those who are allowed all, `public` for the others."""

        def chosen(connection: Connection, request: Command) -> Answer:
            return (whole if self._allowed(connection) else public)(connection, request)

        self._processors.register(code, chosen)

    def closed(self, code: RequestCode, processor: Processor, *, changes: bool = False) -> None:
        """`changes` something: that is logged."""

        def guarded(connection: Connection, request: Command) -> Answer:
            if not self._allowed(connection):
                connection.peer_log.warning(
                    connection.peer_host,
                    "refused from another machine",
                    request=code.name,
                    peer=connection.peer,
                )
                raise RequestError(
                    f"{code.name} is taken from the broker's own machine only; set lakeRemoteAdmin=true there",
                    ResponseCode.NO_PERMISSION,
                )
            if changes:
                log.info("administration", request=code.name, peer=connection.peer)
            return processor(connection, request)

        self._processors.register(code, guarded)

    def _allowed(self, connection: Connection) -> bool:
        return self._remote or is_loopback(connection.peer_host)
