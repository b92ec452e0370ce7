"""Calls that fill a bulkhead."""

from __future__ import annotations

import contextlib

from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.messaging.admission import Bulkhead
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.runtime.reply import Reply

OWN, STRANGER = "10.0.0.1:1000", "10.0.0.66:6666"


def options(**given: str) -> GatewayConfig:
    return load_config(None, given, {})[0]


def fill(bulkhead: Bulkhead, peer: str) -> list[Reply[int]]:
    """As many calls as one peer gets."""
    taken: list[Reply[int]] = []
    with contextlib.suppress(ServiceError):
        while True:
            bulkhead.check(peer)
            taken.append(Reply(None, bulkhead, peer))
    return taken
