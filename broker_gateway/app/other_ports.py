"""The ports that a broker opens beside the remoting ports, for the start and for `lakebroker gateway --check`."""

from __future__ import annotations

from broker_gateway.app.grpc_server import grpc_port
from broker_gateway.cluster.startup import name_server_port
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.runtime.ports import Wanted


def metrics_port(config: GatewayConfig) -> Wanted:
    """Also where it is off."""
    host, port = config.proxy.metrics_prom_exporter_host, config.proxy.metrics_prom_exporter_port
    return Wanted("metricsPromExporterPort", port, "metricsPromExporterHost", host)


def other_ports(config: GatewayConfig) -> list[Wanted]:
    """What will be opened."""
    wanted = [grpc_port(config)]
    if config.proxy.metrics_prom_exporter_port >= 0:
        wanted.append(metrics_port(config))
    if config.registration.lake_with_namesrv:
        wanted.append(name_server_port(config))
    return wanted
