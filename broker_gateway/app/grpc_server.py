"""The gRPC server of a broker: its transport, its certificate, and the services that it binds."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker_gateway.api.grpc.health import HealthService
from broker_gateway.api.grpc.log import LogService
from broker_gateway.api.grpc.reflection import ReflectionService
from broker_gateway.app.broker import Broker
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.runtime.errors import HostError, OptionError
from broker_gateway.runtime.ports import Wanted
from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.certificates import server_context, trial_context
from broker_gateway.transport.methods import Method, Server
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public_admin_pb2
from lakebroker_pb.apache.rocketmq.v2 import service_pb2
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_pb.lakebroker.log.v1 import log_pb2

log = structlog.get_logger(__name__)


def bind(
    config: GatewayConfig,
    broker: Broker,
    log_service: LogService,
    around: Callable[[Method], Method],
    slots: ConnectionSlots,
) -> tuple[Server, HealthService]:
    """The server on its port, with every service bound. Raises StartError when the port cannot be had, OptionError."""
    server = opened(config, broker.tick, slots)
    services: dict[ServiceDescriptor, object] = {
        service_pb2.DESCRIPTOR.services_by_name["MessagingService"]: broker.messaging,
        public_admin_pb2.DESCRIPTOR.services_by_name["Admin"]: broker.public_admin,
        admin_pb2.DESCRIPTOR.services_by_name["AdminService"]: broker.admin,
    }
    return server, bind_services(server, services, log_service, around)


def opened(config: GatewayConfig, tick: Tick, slots: ConnectionSlots) -> Server:
    """The server on its port. Raises StartError when the port cannot be had, OptionError."""
    try:
        return _server(config, tick, config.proxy.grpc_bind_address, config.proxy.grpc_server_port, slots)
    except (OSError, RuntimeError) as error:
        raise grpc_port(config).refused(error) from error


def bind_services(
    server: Server,
    services: Mapping[ServiceDescriptor, object],
    log_service: LogService,
    around: Callable[[Method], Method],
) -> HealthService:
    """Binds services, the log's, and those that tell of them."""
    services = {**services, log_pb2.DESCRIPTOR.services_by_name["LogService"]: log_service}
    names = [descriptor.full_name for descriptor in services]
    health = HealthService(names)
    services[health_pb2.DESCRIPTOR.services_by_name["Health"]] = health
    described = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    services[described] = ReflectionService([*names, "grpc.health.v1.Health", described.full_name])
    for descriptor, implementation in services.items():
        server.bind(descriptor, implementation, around)
    return health


def grpc_port(config: GatewayConfig) -> Wanted:
    """The port that will be opened."""
    return Wanted(
        "grpcServerPort", config.proxy.grpc_server_port, "grpcBindAddress", config.proxy.grpc_bind_address
    )


def _server(config: GatewayConfig, tick: Tick, address: str, port: int, slots: ConnectionSlots) -> Server:
    """The transport that was chosen. Raises OptionError, HostError, OSError or RuntimeError."""
    if config.lake.lake_transport == "grpcio":
        log.info("the transport grpcio takes plaintext only; clients that speak TLS need lakeTransport=http2")
        from broker_gateway.transport.grpcio.server import GrpcioServer

        idle_s = config.server.server_channel_max_idle_time_seconds
        return GrpcioServer(address, port, config.broker.broker_ip1, idle_s)
    from broker_gateway.transport.http2.server import Http2Server

    return Http2Server(address, port, config.broker.broker_ip1, tick, _tls(config), slots)


def check_transport(config: GatewayConfig) -> None:
    """Raises OptionError when TLS is asked for and the transport has none."""
    if config.lake.lake_transport != "grpcio":
        return
    asked = {"tls_cert_path", "tls_key_path", "tls_test_mode_enable"} & config.proxy.model_fields_set
    if any(getattr(config.proxy, field) for field in asked):
        raise OptionError("TLS needs the transport http2; set lakeTransport=http2 or leave TLS out")


def operators_certificate(config: GatewayConfig) -> ssl.SSLContext | None:
    """With the certificate in tlsCertPath; None without one. Raises OptionError."""
    certificate, key = config.proxy.tls_cert_path, config.proxy.tls_key_path
    if (certificate is None) != (key is None):
        missing = "tlsKeyPath" if key is None else "tlsCertPath"
        raise OptionError(f"{missing} is missing; a certificate needs its key")
    if certificate is not None and key is not None:
        return server_context(certificate, key)
    return None


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    context = operators_certificate(config)
    if context is not None:
        return context
    if not config.proxy.tls_test_mode_enable:
        return None
    folder = config.store.store_path_root_dir / "config"
    try:
        context = trial_context(folder, config.broker.broker_ip1)
    except OSError as error:
        raise HostError(
            f"the certificate for TLS cannot be kept in {folder}: {error}; give tlsCertPath and tlsKeyPath, or set "
            "tlsTestModeEnable=false for plaintext only"
        ) from error
    log.info(
        "TLS and plaintext are taken on the gRPC port; the certificate is self-signed, give tlsCertPath and "
        "tlsKeyPath for clients that check it"
    )
    return context
