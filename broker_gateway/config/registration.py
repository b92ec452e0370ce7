"""Options of registration and routes, RocketMQ's names and defaults."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from broker_gateway.config.options import OptionGroup, Port
from broker_gateway.protocol.errors import ConnectError
from broker_gateway.transport.remoting.address import parse_address
from broker_gateway.transport.remoting.trusted_hosts import HostList

MAX_NAME_SERVERS = 64
LEAST_PERIOD_MS, LONGEST_PERIOD_MS = 10_000, 60_000
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")


def name_server_addresses(text: str) -> list[str]:
    """The addresses of a list `host:port;host:port`, each once. Raises ValueError, which names the part that is wrong."""
    found: dict[str, None] = {}
    for number, part in enumerate(text.split(";"), 1):
        part = part.strip()
        if not part:
            continue
        try:
            host, _ = parse_address(part)
        except ConnectError as error:
            raise ValueError(f"name server {number}, {error}") from error
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"name server {number}, address {part[:80]!r}: {host[:80]!r} is no host name or IP address"
            )
        found[part] = None
    if len(found) > MAX_NAME_SERVERS:
        raise ValueError(f"{len(found)} name servers: {MAX_NAME_SERVERS} are allowed")
    return list(found)


def local_address(bound: str, port: int) -> str:
    """Address for this host of what listens on a port of the address `bound`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _checked(text: str) -> str:
    try:
        name_server_addresses(text)
    except ValueError as error:
        raise ValueError(f"{error}; several are written as 127.0.0.1:9876;192.168.0.1:9876") from error
    return text


NameServerList = Annotated[str, AfterValidator(_checked)]


class RegistrationOptions(OptionGroup):
    """How the broker registers, and how it learns of others."""

    compressed_register: bool = Field(False, description="send the topics compressed (without order flags)")
    force_register: bool = Field(
        True, description="register at every period; false: only when a name server's data version differs"
    )
    register_name_server_period: int = Field(
        30_000, ge=0, description="ms between registrations; below 10000 counts as that, above 60000 too"
    )
    update_name_server_addr_period: int = Field(
        120_000, ge=1000, le=86_400_000, description="ms between look-ups of the host names in namesrvAddr"
    )
    register_broker_timeout_mills: int = Field(
        24_000, ge=100, le=600_000, description="ms that a name server has for its answer"
    )
    enable_single_topic_register: bool = Field(
        False, description="tell a changed topic's route alone, instead of a registration with that topic"
    )
    enable_split_registration: bool = Field(False, description="register many topics in several parts")
    split_registration_size: int = Field(
        800, ge=2, le=100_000, description="topics of a part; name servers refuse a first part of one"
    )
    fetch_namesrv_addr_by_address_server: bool = Field(
        False, description="ask rmqAddressServerDomain for the name servers when namesrvAddr is empty"
    )
    rmq_address_server_domain: str = Field(
        "jmenv.tbsite.net",
        pattern=r"^[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?$",
        description="host, or host:port, that is asked; port 8080 without one",
    )
    rmq_address_server_sub_group: str = Field(
        "nsaddr", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="end of the path that is asked for"
    )
    fetch_namesrv_addr_interval: int = Field(10_000, ge=1000, le=3_600_000, description="ms between the asks")
    enable_slave_acting_master: bool = Field(
        False, description="heartbeats to name servers, which then notice a dead broker sooner"
    )
    compatible_with_old_name_srv: bool = Field(
        True, description="heartbeats as queries of the data version, which name servers before 5.0 know"
    )
    broker_heartbeat_interval: int = Field(1000, ge=100, le=60_000, description="ms between heartbeats")
    broker_not_active_timeout_millis: int = Field(
        10_000, ge=1000, le=3_600_000, description="ms of silence after which name servers take it for dead"
    )
    connect_timeout_millis: int = Field(
        3000, ge=1, le=600_000, description="ms to connect to a name server or another broker"
    )
    client_channel_max_idle_time_seconds: int = Field(
        120,
        ge=1,
        le=86_400,
        description="s after which such a connection without requests is closed; more than registerNameServerPeriod,"
        " since a name server forgets a broker whose connection ends",
    )
    poll_name_server_interval: int = Field(
        30_000,
        ge=100,
        le=3_600_000,
        description="ms that a topic's route from a name server counts as new; brokers are looked for as often, and at"
        " least every 5 s; those that have queues of ordered messages at least every 10 s",
    )
    lake_with_namesrv: bool = Field(False, description="run a name server in this process and register there")
    lake_broker_addresses: HostList = Field(
        "",
        description="hosts and networks of your other lakebrokers, separated by semicolons, as 10.0.0.0/8;broker-b.example."
        " Needed with RocketMQ's own name server: without it their queues stay out of routes. Not needed with"
        " `lakebroker namesrv`",
    )
    lake_namesrv_listen_port: Port = Field(9876, description="port of that name server; 0 uses a free one")

    @property
    def period_s(self) -> float:
        """Between registrations, within the original's limits."""
        return min(max(self.register_name_server_period, LEAST_PERIOD_MS), LONGEST_PERIOD_MS) / 1000
