"""The broker's options: RocketMQ's names in a `key=value` file, our own with the prefix `lake`.

Precedence: command line, environment (`LAKEBROKER_<name>`), file, default. Each group is one frozen,
validated class; an attribute is the option's name in snake case.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from broker_gateway.config.catalogue import ROWS
from broker_gateway.config.options import (
    NeededPath,
    OptionalPath,
    Port,
    given_options,
    load_groups,
    option_names,
    unknown_variables,
)
from broker_gateway.config.options import OptionGroup as _Group
from broker_gateway.config.other_options import OtherOptions, values_of
from broker_gateway.config.registration import NameServerList, RegistrationOptions
from broker_gateway.runtime.errors import ModeError, OptionError
from store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from store.log.flush import FlushMode

_PREFIX = "LAKEBROKER_"
_OWN_VARIABLES = re.compile(r"NAMESRV_.*|GATEWAY|TOKEN_FILE|LAKE|EVIDENCE|FUZZ_KEEP")
"""Behind the prefix, what is no option: the name server's options, and variables of commands and tests."""
NAME_MAX_LENGTH = 120
"""Characters of the broker's name, its cluster's and its region's."""
_NAME = rf"^[%|a-zA-Z0-9_-]{{1,{NAME_MAX_LENGTH}}}$"
_DAY_MS = 86_400_000
_MANY = 10_000_000
FAST_PORT_BELOW = 2
"""The fast port is so many below `listenPort`."""
HA_PORT_ABOVE = 1


def _delay_levels(value: str) -> str:
    parse_delay_levels(value)
    return value


DelayLevels = Annotated[str, AfterValidator(_delay_levels)]


def _listen_port(value: int) -> int:
    if 0 < value <= FAST_PORT_BELOW:
        raise ValueError(
            f"it leaves no room for the fast port, {FAST_PORT_BELOW} below; choose a higher one, or 0 for free ones"
        )
    if value > 65535 - HA_PORT_ABOVE:
        raise ValueError(f"it leaves no room for haListenPort, {HA_PORT_ABOVE} above; choose a lower one")
    return value


_LISTEN_PORTS = {"allowed": f"0, or {FAST_PORT_BELOW + 1} to {65535 - HA_PORT_ABOVE}"}
ListenPort = Annotated[Port, AfterValidator(_listen_port), Field(json_schema_extra=_LISTEN_PORTS)]


def _ip(value: str) -> str:
    value = value.strip()
    if not value:
        return default_ip()
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in value else socket.AF_INET, value)
    except (OSError, ValueError) as error:
        raise ValueError("it is not an IP address; host names are not looked up") from error
    return value


IpAddress = Annotated[
    str,
    AfterValidator(_ip),
    Field(json_schema_extra={"allowed": "an IPv4 or IPv6 address; empty: the first usable one"}),
]


def _port_file(value: Path | None) -> Path | None:
    if value is not None and value.is_dir():
        raise ValueError("it is a folder; name a file in it")
    return value


PortFile = Annotated[OptionalPath, AfterValidator(_port_file)]


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
    region_id: str = Field(
        "DefaultRegion", pattern=_NAME, description="property MSG_REGION of messages that are sent"
    )
    trace_on: bool = Field(
        True, description="property TRACE_ON of messages that are sent, for clients that trace"
    )
    broker_id: int = Field(
        0, ge=-(1 << 63), le=(1 << 63) - 1, description="0; a master's is set to 0, slaves are not built yet"
    )
    broker_ip1: IpAddress = Field(
        default_factory=default_ip, alias="brokerIP1", description="address in STOREHOST and routes"
    )
    listen_port: ListenPort = Field(
        10911,
        description="remoting port, in STOREHOST and registered; the fast port is 2 below; 0 takes free ones",
    )
    namesrv_addr: NameServerList = Field(
        "",
        description="name servers to register with, host:port;…; without it NAMESRV_ADDR of the environment",
    )
    default_topic_queue_nums: int = Field(8, ge=1, le=1024, description="queues of a topic made on first use")
    auto_create_topic_enable: bool = Field(
        True,
        description="register TBW102, the template topic by whose route 4.x clients make topics on first use",
    )
    enable_mixed_message_type: bool = Field(
        False, description="message.type=MIXED may be given to topics over the remoting port"
    )
    auto_create_subscription_group: bool = Field(True, description="make consumer groups on first use")
    cluster_topic_enable: bool = Field(
        True, description="make the topic named like the cluster one that may be used"
    )
    broker_topic_enable: bool = Field(
        True, description="make the topic named like the broker one that may be used"
    )
    trace_topic_enable: bool = Field(False, description="make msgTraceTopicName at start")
    msg_trace_topic_name: str = Field("RMQ_SYS_TRACE_TOPIC", pattern=_NAME, description="topic of traces")
    revive_queue_num: int = Field(8, ge=1, le=1024, description="queues of the revive topic, made at start")
    broker_permission: int = Field(
        6, ge=0, le=7, description="4 receives, 2 sends; what is missing is refused"
    )
    start_accept_send_request_time_stamp: int = Field(
        0, ge=0, le=(1 << 63) - 1, description="sends are refused before this time, ms since 1970"
    )
    long_polling_enable: bool = Field(True, description="receives wait for messages as long as they ask for")
    short_polling_time_mills: int = Field(
        1000, ge=0, le=600_000, description="ms that receives wait at most without longPollingEnable"
    )
    init_pop_offset_by_check_msg_in_mem: bool = Field(
        True, description="a new group begins at a queue's start while the log fits memory; false: at its end"
    )
    enable_pop_message_threshold: bool = Field(
        False, description="keep popInflightMessageThreshold too, beside lakeMaxInFlightPerQueue"
    )
    pop_inflight_message_threshold: int = Field(
        10_000, ge=1, description="messages of a group on a queue, with enablePopMessageThreshold"
    )
    disable_consume_if_consumer_read_slowly: bool = Field(
        False, description="forbid groups to consume that fell behind by consumerFallbehindThreshold"
    )
    consumer_fallbehind_threshold: int = Field(16 << 30, ge=1, description="bytes of the log")
    isolate_log_enable: bool = Field(False, description="every line of the log names the broker and its id")
    config_black_list: str = Field(
        "configBlackList;brokerConfigPath",
        description="options that cannot be changed while running, divided by semicolons",
    )
    broker_fast_failure_enable: bool = Field(True, description="refuse calls that waited too long")
    wait_time_mills_in_send_queue: int = Field(200, ge=1, le=_DAY_MS, description="ms; sends")
    wait_time_mills_in_pull_queue: int = Field(5000, ge=1, le=_DAY_MS, description="ms; receives")
    wait_time_mills_in_heartbeat_queue: int = Field(31_000, ge=1, le=_DAY_MS, description="ms; heartbeats")
    wait_time_mills_in_transaction_queue: int = Field(
        3000, ge=1, le=_DAY_MS, description="ms; EndTransaction"
    )
    wait_time_mills_in_ack_queue: int = Field(
        3000, ge=1, le=_DAY_MS, description="ms; acks, changed invisible durations, dead letters"
    )
    wait_time_mills_in_admin_broker_queue: int = Field(
        5000, ge=1, le=_DAY_MS, description="ms; Admin service and remoting administration"
    )
    send_thread_pool_queue_capacity: int = Field(10_000, ge=1, le=_MANY, description="sends under way")
    pull_thread_pool_queue_capacity: int = Field(
        100_000, ge=1, le=_MANY, description="receives under way, waiting ones too, and PULL_MESSAGE"
    )
    ack_thread_pool_queue_capacity: int = Field(
        100_000, ge=1, le=_MANY, description="acks, changed invisible durations, dead letters under way"
    )
    query_thread_pool_queue_capacity: int = Field(
        20_000, ge=1, le=_MANY, description="QueryOffset, QUERY_MESSAGE and VIEW_MESSAGE_BY_ID under way"
    )
    client_manager_thread_pool_queue_capacity: int = Field(
        1_000_000,
        ge=1,
        le=_MANY,
        description="telemetry streams, NotifyClientTermination and UNREGISTER_CLIENT under way",
    )
    consumer_manager_thread_pool_queue_capacity: int = Field(
        1_000_000,
        ge=1,
        le=_MANY,
        description="GetOffset, UpdateOffset, and consumers' offsets and lists on the remoting port under way",
    )
    heartbeat_thread_pool_queue_capacity: int = Field(
        50_000, ge=1, le=_MANY, description="heartbeats under way"
    )
    end_transaction_pool_queue_capacity: int = Field(
        100_000, ge=1, le=_MANY, description="EndTransaction under way"
    )
    admin_broker_thread_pool_queue_capacity: int = Field(
        10_000, ge=1, le=_MANY, description="calls of the Admin service and other remoting requests under way"
    )
    load_balance_thread_pool_queue_capacity: int = Field(
        100_000, ge=1, le=_MANY, description="QueryRoute and QueryAssignment under way"
    )
    retry_max_times: int = Field(16, ge=0, le=1000, description="deliveries after the first, of new groups")


class ServerOptions(_Group):
    """Connections of clients."""

    bind_address: str = Field("0.0.0.0", description="address that the remoting ports are opened on")
    server_channel_max_idle_time_seconds: int = Field(
        120, ge=1, le=86_400, description="s after which a connection without calls is closed"
    )


class StoreOptions(_Group):
    """Where and how the log is kept."""

    store_path_root_dir: NeededPath = Field(
        default_factory=lambda: Path.home() / "store", description="folder of the store: a store, or empty"
    )
    store_path_commit_log: str = Field(
        "",
        description="folders of the log, divided by commas, used in turn, of one broker alone (with --processes each has "
        "one of its name in them, or in its store what is in storePathRootDir); empty: commitlog in the store",
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
    message_index_enable: bool = Field(
        True,
        description="find messages by their keys and ids, by reading the local log; false: none is found",
    )
    access_message_in_memory_max_ratio: int = Field(
        40, ge=1, le=100, description="% of memory: a log within it counts as in memory"
    )
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = Field(
        "ASYNC_MASTER", description="ASYNC_MASTER; the others are refused, they are not built yet"
    )
    ha_listen_port: Port = Field(0, description="announced only, replication is not built; 0: listenPort + 1")
    message_delay_level: DelayLevels = Field(
        DEFAULT_DELAY_LEVELS,
        description="durations of the delay levels: what the lake says of a real broker's delayed messages; "
        "delayed messages of our own are not built yet",
    )
    timer_wheel_enable: bool = Field(
        True, description="make the timer's topic at start; no timer is built yet"
    )

    def log_folders(self) -> list[Path]:
        """The folders that storePathCommitLog names; none where the log is in the store."""
        return [Path(each.strip()) for each in self.store_path_commit_log.split(",") if each.strip()]


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
        True, description="take TLS too, with a self-made certificate unless one is given (transport http2)"
    )
    tls_cert_path: OptionalPath = Field(None, description="certificate chain, PEM: take TLS too")
    tls_key_path: OptionalPath = Field(None, description="its private key, PEM")
    metrics_prom_exporter_port: int = Field(5557, ge=-1, le=65535, description="metrics; 0 free, -1 off")
    metrics_prom_exporter_host: str = Field("127.0.0.1", description="address of the metrics port")


class LakeOptions(_Group):
    """What RocketMQ has no name for."""

    lake_location: str = Field(
        "", description="folder of the Delta tables; empty: none. URLs of object stores are not built yet"
    )
    lake_force_delete: bool = Field(
        False, description="delete segments that the lake does not have before refusing sends"
    )
    lake_auto_create_topics: bool = Field(
        False,
        description="make topics on first use over gRPC, where the original answers TOPIC_NOT_FOUND: sending, receiving and"
        " asking for a route make them, also with a name that is a typing error",
    )
    lake_remote_admin: bool = Field(False, description="take remoting administration from other machines too")
    lake_token_file: OptionalPath = Field(None, description="file with the token for Log and Admin services")
    lake_journal_snapshot_bytes: int = Field(
        64 << 20, ge=1 << 16, description="of log, at least, between the beginnings of two snapshots"
    )
    lake_journal_snapshot_percent: int = Field(
        5, ge=1, le=100, description="of the log, at most, that snapshots may take"
    )
    lake_queue_index_max_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="memory for queue entries of the local log; older ones are in files",
    )
    lake_store_group_read: bool = Field(
        False,
        description="the group may read the store too, by path; files 0640, folders 0750 instead of 0600 and 0700",
    )
    lake_compiled_code_path: OptionalPath = Field(
        None,
        description="folder where compiled code is kept, this user's alone; without it lakecompiled in the store",
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
    lake_max_share_per_address: int = Field(
        25,
        ge=1,
        le=100,
        description="while half of a limit is free (of the calls of a kind, waiting receives, clients, groups made on first"
        " use), nobody is refused; of the second half one address gets at most this % of the limit; 100 turns it off, as"
        " behind a proxy or NAT, where everybody has one address. Limits below 16 are not shared",
    )
    lake_max_clients: int = Field(50_000, ge=1, description="clients known at a time")
    lake_max_auto_created_groups: int = Field(
        20_000,
        ge=1,
        description="consumer groups made on first use (autoCreateSubscriptionGroup), without those that an administrator"
        " changed since",
    )
    lake_max_auto_created_group_queues: int = Field(
        500_000,
        ge=1,
        description="queues that those groups receive from; one that two groups receive from counts twice",
    )
    lake_max_connections_per_address: int = Field(
        0,
        ge=0,
        description="connections of one address, of an IPv6 network of 64 bits; 0: half of what the process may open",
    )
    lake_transport: Literal["http2", "grpcio"] = Field("http2", description="what serves the gRPC port")
    lake_metrics_sink_interval: int = Field(
        10_000, ge=100, le=3_600_000, description="ms between two times that plugged-in metrics sinks are fed"
    )
    lake_port_file: PortFile = Field(None, description="file that is told the ports when the broker is up")
    lake_peers_file: OptionalPath = Field(
        None, description="file with the other brokers of this host; kept by --processes"
    )
    lake_stop_at_end_of_input: bool = Field(
        False, description="stop when standard input ends; set by --processes, so that no broker outlives it"
    )
    lake_log_format: Literal["text", "json"] = Field("text", description="form of log lines")
    lake_log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level")


GROUPS: dict[str, type[_Group]] = {
    "broker": BrokerOptions,
    "server": ServerOptions,
    "store": StoreOptions,
    "proxy": ProxyOptions,
    "registration": RegistrationOptions,
    "lake": LakeOptions,
}
IMPORTANT = [  # the original's, of the groups it prints, and ours
    "brokerName",
    "brokerClusterName",
    "brokerIP1",
    "namesrvAddr",
    "storePathRootDir",
    "flushDiskType",
    "grpcServerPort",
    "listenPort",
    "recoverConcurrently",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "msgTraceTopicName",
    "traceTopicEnable",
    "rejectTransactionMessage",
    "fetchNameSrvAddrByDnsLookup",
    "fetchNamesrvAddrByAddressServer",
    "transactionTimeOut",
    "transactionCheckMax",
    "transactionCheckInterval",
    "aclEnable",
    "lakeLocation",
]


class GatewayConfig(BaseModel):
    """All groups; `other` are options of RocketMQ that have no effect here, where they differ from its default."""

    model_config = ConfigDict(frozen=True)

    broker: BrokerOptions
    server: ServerOptions
    store: StoreOptions
    proxy: ProxyOptions
    registration: RegistrationOptions
    lake: LakeOptions
    other: dict[str, str] = {}
    overridden: frozenset[str] = frozenset()
    """Options given on the command line or in the environment, which count before the file."""

    def options(self) -> dict[str, str]:
        """Every option by its RocketMQ name, as text."""
        shown = {}
        for group in (self.broker, self.server, self.store, self.proxy, self.registration, self.lake):
            for name, value in group.model_dump(mode="json", by_alias=True).items():
                text = "" if value is None else str(value)
                shown[name] = text.lower() if isinstance(value, bool) else text
        return shown | values_of(self.other, shown)

    def shown(self) -> dict[str, str]:
        """`options`, secrets hidden."""
        return {
            name: ROWS[name].shown(value) if name in ROWS else value for name, value in self.options().items()
        }


def load_config(
    file: Path | None, overrides: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[GatewayConfig, list[str]]:
    """The configuration, and a warning for every option without effect. Raises OptionError for a bad value."""
    effective = option_names(GROUPS)
    given = given_options({**effective, **ROWS}, file, overrides, _PREFIX, environment)
    if (address := environment.get("NAMESRV_ADDR")) is not None:
        given.setdefault("namesrvAddr", address)
    config, warnings = config_of(given)
    warnings += unknown_variables({*effective, *ROWS}, _PREFIX, _OWN_VARIABLES, environment)
    overridden = frozenset(
        name for name in effective if name in overrides or f"{_PREFIX}{name}" in environment
    )
    return config.model_copy(update={"overridden": overridden}), warnings


def config_of(given: Mapping[str, str]) -> tuple[GatewayConfig, list[str]]:
    """The configuration with these options. Raises OptionError."""
    effective = option_names(GROUPS)
    others = OtherOptions(effective)
    _check_modes(given)
    parts, warnings = load_groups(GROUPS, given, others)
    warnings += _set_role(parts)
    return GatewayConfig(**parts, other=others.kept), warnings


def _check_modes(given: Mapping[str, str]) -> None:
    on = [
        given.get(name, "").strip().lower() == "true"
        for name in ("enableControllerMode", "enableDLegerCommitLog")
    ]
    if all(on):
        raise ModeError(
            "enableControllerMode and enableDLegerCommitLog must not both be true; neither is built yet"
        )


def _set_role(parts: dict[str, Any]) -> list[str]:
    """What follows from the broker's role and port, as in the original."""
    broker, store, warnings = parts["broker"], parts["store"], []
    if store.broker_role != "ASYNC_MASTER":
        raise OptionError(
            f"option brokerRole={store.broker_role} is refused: replication to slaves is not built yet "
            "(allowed: ASYNC_MASTER)"
        )
    if broker.broker_id != 0:
        warnings.append(f"option brokerId={broker.broker_id} is set to 0, as every master's")
        parts["broker"] = broker.model_copy(update={"broker_id": 0})
    if store.ha_listen_port == 0 and 0 < broker.listen_port < 65535:
        parts["store"] = store.model_copy(update={"ha_listen_port": broker.listen_port + 1})
    return warnings
