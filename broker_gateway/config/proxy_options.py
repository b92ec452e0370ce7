"""Options of the gRPC server: RocketMQ's ProxyConfig."""

from __future__ import annotations

from pydantic import Field

from broker_gateway.config.options import (
    OptionalPath,
    Port,
)
from broker_gateway.config.options import OptionGroup as _Group


class ProxyOptions(_Group):
    """The gRPC server and the limits of the real proxy."""

    grpc_server_port: Port = Field(8081, description="gRPC port, 0 takes a free one")
    grpc_bind_address: str = Field("0.0.0.0", description="address that the gRPC port is opened on")
    grpc_shutdown_time_seconds: int = Field(10, ge=0, le=600, description="s that running calls get at stop")
    min_invisible_time_mills_for_recv: int = Field(10_000, ge=0, description="ms, shortest of a receive")
    max_invisible_time_mills: int = Field(43_200_000, ge=1000, description="ms, longest")
    user_property_max_num: int = Field(128, ge=0, description="user properties of a message")
    max_user_property_size: int = Field(16_384, ge=0, le=32_000, description="bytes of tag, keys, properties")
    max_message_group_size: int = Field(
        64, ge=0, description="bytes that a message group must be shorter than; 0: any"
    )
    max_lite_topic_size: int = Field(64, ge=1, le=128, description="bytes of a lite topic's name, at most")
    max_delay_time_mills: int = Field(
        86_400_000, ge=0, description="ms, longest until a delivery time; 0: timerMaxDelaySec alone counts"
    )
    max_transaction_recovery_second: int = Field(
        3600, ge=0, le=3600, description="s, longest recovery time that a transactional message may bring"
    )
    enable_message_body_empty_check: bool = Field(True, description="refuse empty bodies")
    grpc_client_consumer_min_long_polling_timeout_millis: int = Field(5000, ge=0, description="ms")
    grpc_client_consumer_max_long_polling_timeout_millis: int = Field(20_000, ge=100, description="ms")
    grpc_proxy_relay_request_timeout_in_seconds: int = Field(
        5, ge=1, le=60, description="s that a client has to answer a command of the broker"
    )
    tls_test_mode_enable: bool = Field(
        True, description="take TLS too, with a self-signed certificate unless one is given (transport http2)"
    )
    tls_cert_path: OptionalPath = Field(None, description="certificate chain, PEM: take TLS too")
    tls_key_path: OptionalPath = Field(None, description="its private key, PEM")
    metrics_prom_exporter_port: int = Field(5557, ge=-1, le=65535, description="metrics; 0 free, -1 off")
    metrics_prom_exporter_host: str = Field("127.0.0.1", description="address of the metrics port")
