"""Connections that the broker makes, to name servers and to other brokers."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.config.registration import RegistrationOptions
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import ConnectionOptions


def outgoing(
    options: RegistrationOptions, on_lost: Callable[[str], None], most_under_way: int = 64
) -> RemotingClient:
    """A client within the times of the options; `on_lost` is told the address of a connection that ended."""
    return RemotingClient(
        options=ConnectionOptions(idle_s=float(options.client_channel_max_idle_time_seconds)),
        connect_timeout_s=options.connect_timeout_millis / 1000,
        on_lost=on_lost,
        async_limit=most_under_way,
    )
