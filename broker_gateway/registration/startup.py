"""Starting registration within the broker's process: its own name server where one is wanted, then the registration."""

from __future__ import annotations

import structlog

from broker_gateway.config import GatewayConfig
from broker_gateway.nameserver.config import load_config
from broker_gateway.nameserver.server import NameServer
from broker_gateway.registration.options import local_address
from broker_gateway.registration.registration import Registration
from broker_gateway.undo import Undo

log = structlog.get_logger(__name__)


async def start_registration(config: GatewayConfig, registration: Registration, undo: Undo) -> dict[str, int]:
    """The ports it opened by their names. Raises StartError; what was started is undone by `undo`."""
    ports = {}
    own = []
    if config.registration.lake_with_namesrv:
        address, ports["namesrv"] = await _start_name_server(config, undo)
        own.append(address)
    undo.add("unregistering", registration.stop)  # while our own name server runs
    registration.start(config.broker.listen_port, own)
    return ports


async def _start_name_server(config: GatewayConfig, undo: Undo) -> tuple[str, int]:
    """Its address for this host, and its port. Its files are in the store's folder; other options come from the
    environment (`LAKEBROKER_NAMESRV_<name>`)."""
    folder = config.store.store_path_root_dir / "namesrv"
    folder.mkdir(parents=True, exist_ok=True)
    bound = config.proxy.grpc_bind_address
    options, warnings = load_config(
        None,
        {
            "listenPort": str(config.registration.lake_namesrv_listen_port),
            "bindAddress": bound,
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(folder / "namesrv.properties"),
        },
    )
    for warning in warnings:
        log.warning(warning)
    server = NameServer(options)
    await server.start()
    undo.add("ending the name server", server.stop)
    address = local_address(bound, server.port)
    log.info("name server", address=address)
    return address, server.port
