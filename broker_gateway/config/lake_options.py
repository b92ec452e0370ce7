"""Our own options: what RocketMQ has no name for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from broker_gateway.config.options import (
    OptionalPath,
)
from broker_gateway.config.options import OptionGroup as _Group


def _port_file(value: Path | None) -> Path | None:
    if value is not None and value.is_dir():
        raise ValueError("it is a folder; name a file in it")
    return value


PortFile = Annotated[OptionalPath, AfterValidator(_port_file)]


class LakeOptions(_Group):
    """What RocketMQ has no name for."""

    lake_location: str = Field(
        "",
        description="folder of the Delta tables, or their URL in an object store (s3://bucket/lake); empty: none",
    )
    lake_force_delete: bool = Field(
        False, description="delete segments that the lake does not have before refusing sends"
    )
    lake_cold_read_bytes: int = Field(
        64 << 20,
        ge=1 << 20,
        le=1 << 40,
        description="memory for messages that are read from the lake because the log has them no more",
    )
    lake_new_log_when_ahead: bool = Field(
        True,
        description="begin a new log at start where the lake has more of the log than there is (its end was lost, or it is an"
        " older copy): what was lost is in the lake alone; false: do not start, to restore the newest copy by hand",
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
        description="of a busy log brought into memory ahead of its end in a step, for example 2097152; 0: none",
    )
    lake_self_check_interval: int = Field(
        600_000, ge=100, le=86_400_000, description="ms between looks for damage in the store"
    )
    lake_max_in_flight_per_queue: int = Field(100_000, ge=1, description="messages of a group on a queue")
    lake_ordered_broker_absence: int = Field(
        600_000,
        ge=0,
        description="ms that message groups and lite topics wait for a broker that left, and has their queues: their sends fail until it is back."
        " Then they go to queues of other brokers, and their order begins anew",
    )
    lake_max_pending_timers: int = Field(
        5_000_000,
        ge=1,
        description="messages that wait for their delivery time at a time, without those whose time is past when they come; "
        "each takes about 64 bytes of memory",
    )
    lake_max_pending_timer_bytes: int = Field(
        64 << 30,
        ge=1,
        description="of the records of those messages. The log keeps them: before an old segment goes, those of it are copied to"
        " its end",
    )
    lake_max_pending_transactions: int = Field(
        100_000,
        ge=1,
        description="transactions that have not ended at a time; each takes about 500 bytes of memory",
    )
    lake_max_pending_transaction_bytes: int = Field(
        8 << 30, ge=1, description="of the records of their messages, which the log keeps as those of timers"
    )
    lake_max_erased_records: int = Field(
        1_000_000,
        ge=1,
        le=100_000_000,
        description="erased records that segments of the log still have; each takes about 100 bytes of memory",
    )
    lake_max_waiting_receives: int = Field(50_000, ge=1, description="receives that wait at a time")
    lake_max_share_per_address: int = Field(
        25,
        ge=1,
        le=100,
        description="addresses are not limited while less than half of a limit is used (calls of a kind, waiting receives,"
        " clients and their heartbeats, groups made on first use). Beyond that, one address may use at most this % of the"
        " limit. 100 turns it off, as behind a proxy or NAT, where everybody has one address. Limits below 16 are not"
        " shared",
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
    lake_port_file: PortFile = Field(None, description="file to write the ports to once the broker is up")
    lake_peers_file: OptionalPath = Field(
        None, description="file with the other brokers of this host; kept by --processes"
    )
    lake_stop_at_end_of_input: bool = Field(
        False, description="stop when standard input ends; set by --processes, so that no broker outlives it"
    )
    lake_log_format: Literal["text", "json"] = Field("text", description="form of log lines")
    lake_log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level")
