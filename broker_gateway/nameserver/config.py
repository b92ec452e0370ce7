"""The name server's options: RocketMQ's names and defaults, our own with the prefix `lake`.

Precedence: command line, environment (`LAKEBROKER_NAMESRV_<name>`), file, default. Options that size the original's
threads are taken, shown and kept, so that its file can be used as it is; they have no effect on one event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from broker_gateway.config.options import (
    NeededPath,
    OptionGroup,
    Port,
    given_options,
    load_groups,
    option_names,
    unknown_variables,
    validated,
)
from broker_gateway.transport.remoting.trusted_hosts import HostList


def _not_built(value: bool) -> bool:
    if value:
        raise ValueError("this is not built; leave it false")
    return value


NotBuilt = Annotated[bool, AfterValidator(_not_built)]
_PREFIX = "LAKEBROKER_NAMESRV_"
_THREADS = "taken for compatibility, no effect: one event loop serves all"


class NamesrvOptions(OptionGroup):
    """What is kept and answered."""

    rocketmq_home: str = Field(
        default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""), description="not needed; shown to tools"
    )
    kv_config_path: NeededPath = Field(
        default_factory=lambda: Path.home() / "namesrv" / "kvConfig.json", description="file of the KV table"
    )
    config_store_path: NeededPath = Field(
        default_factory=lambda: Path.home() / "namesrv" / "namesrv.properties",
        description="file that options changed while running are kept in; the -c file when there is one",
    )
    product_env_name: str = Field(
        "center", description="shown to tools; for cluster tests, which are not built"
    )
    cluster_test: NotBuilt = Field(False, description="routes from another name server; not built")
    order_message_enable: bool = Field(False, description="routes carry the order configuration of topics")
    return_order_topic_config_to_broker: bool = Field(
        True, description="answers to registrations carry the order configuration"
    )
    client_request_thread_pool_nums: int = Field(8, ge=1, description=_THREADS)
    default_thread_pool_nums: int = Field(16, ge=1, description=_THREADS)
    client_request_thread_pool_queue_capacity: int = Field(50_000, ge=1, description=_THREADS)
    default_thread_pool_queue_capacity: int = Field(10_000, ge=1, description=_THREADS)
    scan_not_active_broker_interval: int = Field(
        5000, ge=10, le=3_600_000, description="ms between looks for brokers that are silent"
    )
    un_register_broker_queue_capacity: int = Field(3000, ge=1, description=_THREADS)
    support_acting_master: bool = Field(
        False, description="routes name the slave with the least id as master of a broker that lost its own"
    )
    enable_all_topic_list: bool = Field(True, description="answer the list of all topics")
    enable_topic_list: bool = Field(True, description="answer lists of topics by cluster and of units")
    notify_min_broker_id_changed: bool = Field(
        False, description="tell the brokers of a name when its least broker id changes"
    )
    enable_controller_in_namesrv: NotBuilt = Field(False, description="controller; not built")
    need_wait_for_service: bool = Field(
        False, description="answer no routes until waitSecondsForService is over"
    )
    wait_seconds_for_service: int = Field(45, ge=0, le=3600, description="s after start")
    delete_topic_with_broker_registration: bool = Field(
        False, description="a registration drops the broker's topics that it does not name"
    )
    config_black_list: str = Field(
        "configBlackList;configStorePath;kvConfigPath",
        description="options that cannot be changed while running, divided by semicolons",
    )


class ServerOptions(OptionGroup):
    """The remoting server."""

    bind_address: str = Field("0.0.0.0", min_length=1, description="address that the port is opened on")
    listen_port: Port = Field(9876, description="port, 0 takes a free one")
    server_worker_threads: int = Field(8, ge=0, description=_THREADS)
    server_callback_executor_threads: int = Field(0, ge=0, description=_THREADS)
    server_selector_threads: int = Field(3, ge=0, description=_THREADS)
    server_oneway_semaphore_value: int = Field(256, ge=1, description="one-way requests under way to brokers")
    server_async_semaphore_value: int = Field(64, ge=1, description="taken for compatibility, no effect")
    server_channel_max_idle_time_seconds: int = Field(
        120, ge=1, le=86_400, description="s after which a silent connection is closed"
    )
    server_socket_snd_buf_size: int = Field(0, ge=0, description="taken for compatibility, no effect")
    server_socket_rcv_buf_size: int = Field(0, ge=0, description="taken for compatibility, no effect")
    write_buffer_high_water_mark: int = Field(0, ge=0, description="taken for compatibility, no effect")
    write_buffer_low_water_mark: int = Field(0, ge=0, description="taken for compatibility, no effect")
    server_socket_backlog: int = Field(
        1024, ge=1, le=65_535, description="connections that wait to be accepted"
    )
    server_netty_worker_group_enable: bool = Field(True, description=_THREADS)
    server_pooled_byte_buf_allocator_enable: bool = Field(True, description=_THREADS)
    enable_shutdown_gracefully: bool = Field(
        False, description="running requests get shutdownWaitTimeSeconds"
    )
    shutdown_wait_time_seconds: int = Field(30, ge=0, le=600, description="s")
    use_epoll_native_selector: bool = Field(False, description=_THREADS)


class LakeNamesrvOptions(OptionGroup):
    """What RocketMQ has no name for."""

    lake_remote_admin: bool = Field(
        False,
        description="take requests that change something, and show options, from other machines too",
    )
    lake_broker_addresses: HostList = Field(
        "",
        description="hosts and networks that may speak for brokers registered from elsewhere, whose brokers"
        " lakebrokers may connect to, and that find room whatever other hosts registered",
    )
    lake_max_connections: int = Field(20_000, ge=1, le=1_000_000, description="connections at a time")
    lake_max_connections_per_address: int = Field(
        0, ge=0, description="connections of one address, of an IPv6 network of 64 bits; 0: half of all"
    )
    lake_log_format: Literal["text", "json"] = Field("text", description="form of log lines")
    lake_log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level")


GROUPS: dict[str, type[OptionGroup]] = {
    "namesrv": NamesrvOptions,
    "server": ServerOptions,
    "lake": LakeNamesrvOptions,
}


class NameServerConfig(BaseModel):
    """All groups."""

    model_config = ConfigDict(frozen=True)

    namesrv: NamesrvOptions
    server: ServerOptions
    lake: LakeNamesrvOptions

    def options(self) -> dict[str, str]:
        """Every option by its name, as RocketMQ writes its value."""
        shown = {}
        for group in (self.namesrv, self.server, self.lake):
            for name, value in group.model_dump(mode="json", by_alias=True).items():
                shown[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return shown

    def changed(self, given: Mapping[str, str]) -> NameServerConfig:
        """With other values for some options; unknown names are passed over. Raises OptionError for a bad value."""
        parts: dict[str, Any] = {}
        for group, options in GROUPS.items():
            before = getattr(self, group).model_dump(by_alias=True)
            after = {name: given.get(name, value) for name, value in before.items()}
            parts[group] = validated(options, after, group)
        return NameServerConfig(**parts)


def load_config(
    file: Path | None, overrides: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> tuple[NameServerConfig, list[str]]:
    """The configuration, and a warning for every option nobody knows. Raises OptionError for a bad value."""
    if file is not None:
        overrides = {"configStorePath": str(file), **overrides}
    names = option_names(GROUPS)
    given = given_options(names, file, overrides, _PREFIX, environment)
    parts, warnings = load_groups(GROUPS, given)
    warnings += unknown_variables(names, _PREFIX, None, environment)
    return NameServerConfig(**parts), warnings
