"""The rule of shares, for whoever counts."""

from __future__ import annotations

import pytest

from broker_gateway.messaging.admission import Admission
from broker_gateway.runtime.shares import LEAST_SHARED, Shares, host_of, network_of
from broker_gateway.runtime.tick import Tick
from tests.support.brokers.bulkheads import STRANGER, fill, options


def taken(shares: Shares, limit: int, host: str, before: int = 0) -> int:
    """How many of `limit` a host gets, one after the other."""
    count = 0
    while before + count < limit and not shares.refuse(host, before + count):
        shares.count(host)
        count += 1
    return count


def test_beyond_half_a_host_has_its_share() -> None:
    shares = Shares(100, 25)
    assert taken(shares, 100, "hostile") == 50
    assert [taken(shares, 100, f"h{number}", 50 + 25 * number) for number in range(2)] == [25, 25]
    for _ in range(50):
        shares.count("hostile", -1)
    assert taken(shares, 100, "hostile", 50) == 25


def test_what_comes_in_pieces_is_weighed_whole() -> None:
    shares = Shares(1000, 25)
    shares.count("a", 200)
    assert not shares.refuse("a", 200, 300)
    assert shares.refuse("a", 200, 301)
    assert not shares.refuse("a", 900, 50)
    assert shares.refuse("a", 900, 51)


@pytest.mark.parametrize(("limit", "percent"), [(LEAST_SHARED - 1, 25), (100, 100)])
def test_little_is_not_shared_out_nor_what_the_option_leaves_whole(limit: int, percent: int) -> None:
    assert taken(Shares(limit, percent), limit, "a") == limit


def test_few_waiting_receives_do_not_share_out_the_calls() -> None:
    bulkhead = Admission(options(pullThreadPoolQueueCapacity="100", lakeMaxWaitingReceives="10"), Tick()).pull
    assert len(fill(bulkhead, STRANGER)) == 100


def test_nobody_gives_back_what_it_does_not_have() -> None:
    shares = Shares(100, 25)
    shares.count("a", 2)
    shares.count("a", -2)
    assert not shares
    with pytest.raises(ValueError, match="a has 0 and gives back 1"):
        shares.count("a", -1)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", network_of("2001:db8::ffff:1")),
        ("fe80::1%eth0", network_of("fe80::2")),
        ("?", "?"),
    ],
)
def test_what_counts_as_one_host(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1:1", "10.0.0.1:2", True),
        ("10.0.0.1:1", "10.0.0.2:1", False),
        ("[2001:db8::1]:1", "[2001:db8::2]:1", True),
        ("[2001:db8::1]:1", "[2001:db8:0:1::1]:1", False),
        ("[::ffff:10.0.0.1]:1", "10.0.0.1:2", True),
        ("unix", "unix", True),
    ],
)
def test_peers_of_one_host(one: str, other: str, same: bool) -> None:
    """A host has all addresses of an IPv6 network of 64 bits."""
    assert (host_of(one) == host_of(other)) is same


def test_an_ipv6_host_is_shown_as_its_network() -> None:
    assert (
        host_of("[2001:db8:1:2:3::4]:5")
        == network_of(host_of("[2001:db8:1:2:3::4]:5"))
        == "2001:db8:1:2::/64"
    )


def test_what_shrinks_is_never_refused() -> None:
    shares = Shares(100, 25)
    shares.count("one", 40)
    assert shares.refuse("one", 80)
    assert not shares.refuse("one", 80, -10)
