"""Options of the broker and its connections: RocketMQ's BrokerConfig and NettyServerConfig."""

from __future__ import annotations

import socket
from typing import Annotated

from pydantic import AfterValidator, Field

from broker_gateway.config.options import OptionGroup as _Group
from broker_gateway.config.options import (
    Port,
)
from broker_gateway.config.registration import NameServerList

NAME_MAX_LENGTH = 120
"""Characters of the broker's name, its cluster's and its region's."""
_NAME = rf"^[%|a-zA-Z0-9_-]{{1,{NAME_MAX_LENGTH}}}$"
_DAY_MS = 86_400_000
_MANY = 10_000_000
FAST_PORT_BELOW = 2
"""The fast port is so many below `listenPort`."""
HA_PORT_ABOVE = 1


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
        description="remoting port, in STOREHOST and registered; the fast port is 2 below; 0 uses any free ports",
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
    max_lite_subscription_count: int = Field(
        100_000, ge=0, le=100_000_000, description="lite topics that all lite consumers together subscribe to"
    )
    min_lite_t_tl: int = Field(
        900_000, ge=0, le=(1 << 62), description="ms, least time that a lite topic lives after a message"
    )
    lite_ttl_check_interval: int = Field(
        120_000, ge=100, le=86_400_000, description="ms between looks at lite topics whose time is over"
    )
    lite_subscription_check_interval: int = Field(
        120_000, ge=100, le=86_400_000, description="ms between looks at lite consumers that say nothing"
    )
    lite_subscription_check_timeout_mills: int = Field(
        180_000,
        ge=1000,
        le=(1 << 62),
        description="ms; a lite consumer that says nothing for so long has no subscription",
    )
    long_polling_enable: bool = Field(
        True, description="long polling: a receive waits for messages up to its own timeout"
    )
    short_polling_time_mills: int = Field(
        1000, ge=0, le=600_000, description="ms that receives wait at most without longPollingEnable"
    )
    init_pop_offset_by_check_msg_in_mem: bool = Field(
        True, description="a new group begins at a queue's start while the log fits memory; false: at its end"
    )
    enable_pop_message_threshold: bool = Field(
        False, description="also enforce popInflightMessageThreshold, beside lakeMaxInFlightPerQueue"
    )
    pop_inflight_message_threshold: int = Field(
        10_000, ge=1, description="messages of a group on a queue, with enablePopMessageThreshold"
    )
    priority_order_asc: bool = Field(
        True,
        description="topics of type PRIORITY: a higher number is more urgent; false: a lower one is",
    )
    enable_property_filter: bool = Field(
        False, description="SQL filters in pulls over the remoting port; over gRPC they are always served"
    )
    disable_consume_if_consumer_read_slowly: bool = Field(
        False, description="forbid groups to consume that fell behind by consumerFallbehindThreshold"
    )
    consumer_fallbehind_threshold: int = Field(16 << 30, ge=1, description="bytes of the log")
    isolate_log_enable: bool = Field(False, description="every line of the log names the broker and its id")
    config_black_list: str = Field(
        "configBlackList;brokerConfigPath",
        description="options that cannot be changed while running, separated by semicolons",
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
    reject_transaction_message: bool = Field(False, description="take no transactional messages")
    transaction_time_out: int = Field(
        6000, ge=0, le=_DAY_MS, description="ms after which a producer is asked how a transaction ended"
    )
    transaction_check_max: int = Field(
        15,
        ge=0,
        le=1000,
        description="times a producer is asked; then TRANS_CHECK_MAX_TIME_TOPIC has the message",
    )
    transaction_check_interval: int = Field(
        30_000, ge=100, le=_DAY_MS, description="ms between two times a producer is asked"
    )
    recall_message_enable: bool = Field(
        False, description="let producers take messages back whose delivery time has not come"
    )
    allow_recall_when_broker_not_writeable: bool = Field(
        True, description="also while brokerPermission forbids to write"
    )
    retry_max_times: int = Field(16, ge=0, le=1000, description="deliveries after the first, of new groups")


class ServerOptions(_Group):
    """Connections of clients."""

    bind_address: str = Field("0.0.0.0", description="address that the remoting ports are opened on")
    server_channel_max_idle_time_seconds: int = Field(
        120, ge=1, le=86_400, description="s after which a connection without calls is closed"
    )
