"""The broker's remoting port: what name servers and other brokers ask."""

from __future__ import annotations

from broker_gateway.config import GatewayConfig
from broker_gateway.errors import StartError
from broker_gateway.remoting.connection import Processors
from broker_gateway.remoting.server import RemotingServer


class FrontDoor:
    """Listens on `listenPort` of the address that the gRPC port is opened on."""

    def __init__(self, config: GatewayConfig, processors: Processors) -> None:
        self._config = config
        self._server = RemotingServer(processors)

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Raises StartError."""
        address, port = self._config.proxy.grpc_bind_address, self._config.broker.listen_port
        try:
            await self._server.start(address, port)
        except OSError as error:
            raise StartError(
                f"port {port} of {address} cannot be opened ({error}); choose another listenPort"
            ) from error

    async def stop(self) -> None:
        await self._server.stop()
