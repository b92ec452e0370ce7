"""Starting registration within the broker's process: its own name server where one is wanted, then the registration."""

from __future__ import annotations

import os
from collections.abc import Mapping

import structlog

from broker_gateway.auth.policy import Policy
from broker_gateway.cluster.registration import Registration
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.registration import local_address
from broker_gateway.nameserver.config import NameServerConfig, load_config
from broker_gateway.nameserver.server import NameServer
from broker_gateway.runtime.cleanup import Cleanup
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.runtime.ports import Wanted

log = structlog.get_logger(__name__)


async def start_registration(
    config: GatewayConfig,
    registration: Registration,
    slots: ConnectionSlots,
    policy: Policy | None,
    cleanup: Cleanup,
) -> dict[str, int]:
    """The ports it opened by their names; `policy` is that of its own name server. Raises StartError; what was started is
    undone by `cleanup`."""
    ports = {}
    own = []
    if config.registration.lake_with_namesrv:
        address, ports["namesrv"] = await _start_name_server(config, slots, policy, cleanup)
        own.append(address)
    cleanup.add("unregistering", registration.stop)  # while our own name server runs
    registration.start(config.broker.listen_port, own)
    return ports


def name_server_config(
    config: GatewayConfig, environment: Mapping[str, str] = os.environ
) -> tuple[NameServerConfig, list[str]]:
    """Options of the broker's own name server, and warnings. Raises OptionError.

    Its files are in the store's folder. What the broker's options say is not read back from there; other options are,
    so that what `mqadmin updateNamesrvConfig` changed stays, unless the environment (`LAKEBROKER_NAMESRV_<name>`) has
    them too.
    """
    folder = config.store.store_path_root_dir / "namesrv"
    stored = folder / "namesrv.properties"
    remote_admin = str(config.lake.lake_remote_admin).lower()
    return load_config(
        stored if stored.exists() else None,
        {
            "listenPort": str(config.registration.lake_namesrv_listen_port),
            "bindAddress": config.proxy.grpc_bind_address,
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(stored),
            "lakeBrokerAddresses": environment.get(
                "LAKEBROKER_NAMESRV_lakeBrokerAddresses", config.registration.lake_broker_addresses
            ),
            "lakeRemoteAdmin": environment.get("LAKEBROKER_NAMESRV_lakeRemoteAdmin", remote_admin),
        },
        environment,
    )


def name_server_port(config: GatewayConfig) -> Wanted:
    """The port of the broker's own name server, with the broker's options for it."""
    return Wanted(
        "lakeNamesrvListenPort",
        config.registration.lake_namesrv_listen_port,
        "grpcBindAddress",
        config.proxy.grpc_bind_address,
    )


async def _start_name_server(
    config: GatewayConfig, slots: ConnectionSlots, policy: Policy | None, cleanup: Cleanup
) -> tuple[str, int]:
    """Its address for this host, and its port."""
    options, warnings = name_server_config(config)
    options.namesrv.config_store_path.parent.mkdir(parents=True, exist_ok=True)
    for warning in warnings:
        log.warning(warning)
    server = NameServer(options, slots, name_server_port(config), policy)
    await server.start()
    cleanup.add("ending the name server", server.stop)
    address = local_address(options.server.bind_address, server.port)
    log.info("name server", address=address)
    return address, server.port
