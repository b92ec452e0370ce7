"""A host that registers as much as it can leaves room for others: shares are parts of the limits."""

from __future__ import annotations

import pytest

from broker_gateway.nameserver.claims import Peer
from broker_gateway.nameserver.quotas import Limits
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.trusted_hosts import trusted_hosts
from tests.support.brokers.registrations import Clock, gone, registration

MOST = 1000
"""Brokers of a table; 10,000 unless told."""


def peer(host: str, listed: str = "") -> Peer:
    return Peer(host, trusted_hosts(listed))


def flood(table: RouteTable, host: str) -> tuple[int, str]:
    """How many brokers a host registers, and what it is told then."""
    for number in range(2 * MOST):
        try:
            table.register(
                registration(0, f"{host}:{number + 1}", name=f"{host}-{number}"), host, peer=peer(host)
            )
        except RequestError as error:
            return number, str(error)
    raise AssertionError("there is no bound")


def test_one_host_leaves_places_to_others() -> None:
    table = RouteTable(Clock(), Limits(brokers=MOST))
    _, told = flood(table, "10.0.0.66")
    table.register(registration(0, "10.0.0.1:10911", name="b"), "own", peer=peer("10.0.0.1"))
    assert "10.0.0.66" in told
    assert "lakeBrokerAddresses" in told
    gone(table, "10.0.0.66")
    assert flood(table, "10.0.0.66")[0] == MOST // 2 - 1, "of the first half one is taken"


def test_hosts_that_are_listed_find_room_whatever_others_took() -> None:
    table = RouteTable(Clock(), Limits(brokers=MOST))
    assert [flood(table, f"10.0.0.{number}")[0] for number in range(66, 70)] == [500, 250, 250, 0]
    with pytest.raises(RequestError, match=rf"{MOST} brokers .*no more are taken.*lakeBrokerAddresses"):
        table.register(registration(0, "10.0.1.1:1", name="b"), "own", peer=peer("10.0.1.1"))
    table.register(registration(0, "10.0.1.1:1", name="b"), "own", peer=peer("10.0.1.1", "10.0.1.0/24"))
    table.register(registration(0, "127.0.0.1:1", name="here"), "here", peer=peer("127.0.0.1"))
