"""The broker's options: RocketMQ's names in a `key=value` file, our own with the prefix `lake`.

Precedence: command line, environment (`LAKEBROKER_<name>`), file, default. Each group is one frozen,
validated class; an attribute is the option's name in snake case.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from broker_gateway.options import OptionGroup as _Group
from broker_gateway.options import Port, load_groups, option_names
from store.flush import FlushMode

_NAME = r"^[%|a-zA-Z0-9_-]{1,120}$"


def default_ip() -> str:
    """The address of the first usable interface; 127.0.0.1 without a network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class BrokerOptions(_Group):
    """Who the broker is and what it makes by itself."""

    broker_name: str = Field("broker-a", pattern=_NAME, description="name of the broker")
    broker_cluster_name: str = Field("DefaultCluster", pattern=_NAME, description="name of its cluster")
    broker_id: int = Field(0, ge=0, le=0, description="0, master; slaves are not built yet")
    broker_ip1: str = Field(
        default_factory=default_ip, alias="brokerIP1", description="address in STOREHOST and routes"
    )
    bind_address: str = Field("0.0.0.0", description="address that the remoting ports are opened on")
    listen_port: Port = Field(
        10911, description="remoting port, also in STOREHOST; the fast port is 2 below; 0 takes free ones"
    )
    server_channel_max_idle_time_seconds: int = Field(
        120, ge=1, le=86_400, description="s without a byte after which a remoting connection is closed"
    )
    namesrv_addr: str = Field("", description="name servers, host:port;…; registration is not built yet")
    default_topic_queue_nums: int = Field(8, ge=1, le=1024, description="queues of a topic made on first use")
    auto_create_topic_enable: bool = Field(True, description="make topics on first use")
    auto_create_subscription_group: bool = Field(True, description="make consumer groups on first use")
    retry_max_times: int = Field(16, ge=0, le=1000, description="deliveries after the first, of new groups")


class StoreOptions(_Group):
    """Where and how the log is kept."""

    store_path_root_dir: Path = Field(
        default_factory=lambda: Path.home() / "store", description="folder of the store"
    )
    store_path_commit_log: str = Field(
        "", description="folders of the log, divided by commas, used in turn; empty: commitlog in the store"
    )
    mapped_file_size_commit_log: int = Field(
        1 << 30, ge=1 << 20, le=1 << 32, description="bytes of a segment; fixed when the store is made"
    )
    flush_disk_type: FlushMode = Field(
        FlushMode.ASYNC_FLUSH, description="ASYNC_FLUSH or SYNC_FLUSH (the reply waits for the disk)"
    )
    flush_interval_commit_log: int = Field(500, ge=1, le=60_000, description="ms between flushes")
    flush_commit_log_least_pages: int = Field(
        0, ge=0, le=1 << 20, description="pages of 4 KiB to wait for before an interval's flush"
    )
    flush_commit_log_thorough_interval: int = Field(
        10_000, ge=1, le=600_000, description="ms after which fewer pages are flushed too"
    )
    os_page_cache_busy_time_out_mills: int = Field(
        1000, ge=1, le=600_000, description="ms of an append after which sends that waited are refused"
    )
    sync_flush_timeout: int = Field(5000, ge=10, le=600_000, description="ms a send waits for the disk")
    file_reserved_time: int = Field(72, ge=0, le=1_000_000, description="hours that a segment stays")
    delete_when: str = Field(
        "04", pattern=r"^([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*$", description="hours of deletion, 04;16"
    )
    disk_max_used_space_ratio: int = Field(
        75, ge=10, le=95, description="% of the disk: expired segments go at any hour"
    )
    disk_space_clean_forcibly_ratio: int = Field(
        85, ge=30, le=99, description="%: the oldest segments go at once"
    )
    disk_space_warning_level_ratio: int = Field(90, ge=35, le=99, description="%: sends are refused")
    clean_file_forcibly_enable: bool = Field(True, description="delete segments that are not expired")
    delete_file_batch_max: int = Field(10, ge=1, le=1000, description="segments deleted in one look")
    clean_resource_interval: int = Field(10_000, ge=100, le=3_600_000, description="ms between looks")
    warm_maped_file_enable: bool = Field(
        False, description="write new segments out and lock them in memory until the log is behind them"
    )
    flush_least_pages_when_warm_maped_file: int = Field(
        4096, ge=1, le=1 << 20, description="pages of 4 KiB between flushes while a segment is warmed"
    )
    max_message_size: int = Field(4 << 20, ge=1, le=64 << 20, description="bytes of a body")


class ProxyOptions(_Group):
    """The gRPC server and the limits of the real proxy."""

    grpc_server_port: Port = Field(8081, description="gRPC port, 0 takes a free one")
    grpc_bind_address: str = Field("0.0.0.0", description="address that the gRPC port is opened on")
    grpc_shutdown_time_seconds: int = Field(10, ge=0, le=600, description="s that running calls get at stop")
    min_invisible_time_mills_for_recv: int = Field(10_000, ge=0, description="ms, shortest of a receive")
    max_invisible_time_mills: int = Field(43_200_000, ge=1000, description="ms, longest")
    user_property_max_num: int = Field(128, ge=0, description="user properties of a message")
    max_user_property_size: int = Field(16_384, ge=0, le=32_000, description="bytes of tag, keys, properties")
    enable_message_body_empty_check: bool = Field(True, description="refuse empty bodies")
    grpc_client_consumer_min_long_polling_timeout_millis: int = Field(5000, ge=0, description="ms")
    grpc_client_consumer_max_long_polling_timeout_millis: int = Field(20_000, ge=100, description="ms")
    tls_test_mode_enable: bool = Field(
        False, description="take TLS too, with a certificate made for trials (transport http2)"
    )
    tls_cert_path: Path | None = Field(None, description="certificate chain, PEM: take TLS too")
    tls_key_path: Path | None = Field(None, description="its private key, PEM")
    metrics_prom_exporter_port: int = Field(5557, ge=-1, le=65535, description="metrics; 0 free, -1 off")
    metrics_prom_exporter_host: str = Field("127.0.0.1", description="address of the metrics port")


class LakeOptions(_Group):
    """What RocketMQ has no name for."""

    lake_location: str = Field("", description="folder or URL of the Delta tables; empty: none")
    lake_force_delete: bool = Field(
        False, description="delete segments that the lake does not have before refusing sends"
    )
    lake_remote_admin: bool = Field(False, description="take remoting administration from other machines too")
    lake_token_file: Path | None = Field(None, description="file with the token for Log and Admin services")
    lake_journal_snapshot_bytes: int = Field(64 << 20, ge=1 << 16, description="log between two snapshots")
    lake_queue_index_max_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="memory for queue entries of the local log; older ones are in files",
    )
    lake_prefault_bytes: int = Field(
        0,
        ge=0,
        le=256 << 20,
        description="of a busy log brought into memory ahead of its end in a step, 2097152, say; 0: none",
    )
    lake_self_check_interval: int = Field(
        600_000, ge=100, le=86_400_000, description="ms between looks for damage in the store"
    )
    lake_max_in_flight_per_queue: int = Field(100_000, ge=1, description="messages of a group on a queue")
    lake_max_waiting_receives: int = Field(50_000, ge=1, description="receives that wait at a time")
    lake_max_clients: int = Field(50_000, ge=1, description="clients known at a time")
    lake_transport: Literal["http2", "grpcio"] = Field("http2", description="what serves the gRPC port")
    lake_port_file: Path | None = Field(None, description="file that is told the ports when the broker is up")
    lake_peers_file: Path | None = Field(
        None, description="file with the other brokers of this host; kept by --processes"
    )
    lake_log_format: Literal["text", "json"] = Field("text", description="form of log lines")
    lake_log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level")


WITHOUT_EFFECT = {
    "transientStorePoolEnable": "records go to the page cache at once and none are lost with the process",
    "fastFailIfNoBufferInStorePool": "there is no transientStorePool",
}
"""Options of RocketMQ that cannot be switched on here, and why."""
GROUPS: dict[str, type[_Group]] = {
    "broker": BrokerOptions,
    "store": StoreOptions,
    "proxy": ProxyOptions,
    "lake": LakeOptions,
}
IMPORTANT = [
    "brokerName",
    "brokerClusterName",
    "brokerIP1",
    "namesrvAddr",
    "storePathRootDir",
    "flushDiskType",
    "grpcServerPort",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "lakeLocation",
]


class GatewayConfig(BaseModel):
    """All groups."""

    model_config = ConfigDict(frozen=True)

    broker: BrokerOptions
    store: StoreOptions
    proxy: ProxyOptions
    lake: LakeOptions
    file: Path | None = None
    """Where options were read from."""
    overridden: frozenset[str] = frozenset()
    """Options that were not: given on the command line or in the environment."""

    def options(self) -> dict[str, str]:
        """Every option by its RocketMQ name, as text."""
        shown = {}
        for group in (self.broker, self.store, self.proxy, self.lake):
            for name, value in group.model_dump(mode="json", by_alias=True).items():
                shown[name] = "" if value is None else str(value)
        return shown


def load_config(
    file: Path | None, overrides: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[GatewayConfig, list[str]]:
    """The configuration, and a warning for every option nobody knows. Raises OptionError for a bad value."""
    parts, warnings = load_groups(GROUPS, file, overrides, "LAKEBROKER_", environment, WITHOUT_EFFECT)
    overridden = {
        name for name in option_names(GROUPS) if name in overrides or f"LAKEBROKER_{name}" in environment
    }
    return GatewayConfig(**parts, file=file, overridden=frozenset(overridden)), warnings
