"""Who may speak for a registered broker: strangers may not, whatever they send."""

from __future__ import annotations

import pytest

from broker_gateway.nameserver import route_queries
from broker_gateway.nameserver.claims import OWN_MACHINE, Claim, Peer, check_claim
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.body.route import QueueData
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.trusted_hosts import trusted_hosts
from tests.support.brokers.registrations import Clock, gone, registration, route

OWNER, STRANGER = (Peer(host, trusted_hosts("")) for host in ("10.0.0.1", "10.0.0.66"))
ADDRESS = "10.0.0.1:10911"
REFUSED = "may not speak for it.*lakeBrokerAddresses"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> RouteTable:
    table = RouteTable(clock)
    table.register(registration(0, ADDRESS, "orders", "other"), "owner", peer=OWNER)
    return table


def unchanged(table: RouteTable) -> None:
    found = route(table)
    assert found is not None
    (broker,) = found.broker_datas
    assert dict(broker.broker_addrs)[0] == ADDRESS
    assert found.queue_datas == (QueueData("b", 4, 4, 6),)
    assert table.live["c", ADDRESS].connection == "owner"


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "10.0.0.66:1", "state": 99},
        {"address": "10.0.0.66:1", "state": 0},
        {"address": "10.0.0.66:1", "state": 99, "cluster": "evil"},
        {"address": "10.0.0.66:1", "broker_id": -1},
        {"address": ADDRESS, "state": 99},
        {"address": ADDRESS, "cluster": "evil"},
        {"address": ADDRESS, "broker_id": 7, "cluster": "evil"},
        {"address": ADDRESS, "name": "another"},
    ],
)
def test_what_somebody_alive_has_is_not_taken(table: RouteTable, changes: dict[str, object]) -> None:
    given = {"broker_id": 0, **changes}
    broker_id, address = given.pop("broker_id"), given.pop("address")
    with pytest.raises(RequestError, match=REFUSED):
        table.register(registration(broker_id, address, "orders", "evil", **given), "stranger", peer=STRANGER)  # type: ignore[arg-type]
    unchanged(table)
    gone(table, "stranger")
    unchanged(table)


def test_what_holds_for_all_brokers_of_a_name_is_said_by_the_first(table: RouteTable) -> None:
    table.register(registration(0, ADDRESS, "orders", "other", zone="z1", acting=False), "owner", peer=OWNER)
    slave = registration(7, "10.0.0.66:1", "orders", "other", zone="evil", acting=True)
    table.register(slave, "stranger", peer=STRANGER)
    assert (table.brokers["b"].zone_name, table.brokers["b"].enable_acting_master) == ("z1", False)
    unchanged(table)
    listed = Peer("10.0.0.66", trusted_hosts("10.0.0.0/24"))
    table.register(
        registration(7, "10.0.0.66:1", "orders", "other", zone="z1", acting=True), "slave", peer=listed
    )
    assert table.brokers["b"].enable_acting_master


def test_unregistering_is_the_owners(table: RouteTable) -> None:
    for cluster in ("c", "evil"):
        for broker_id in (0, 1, -1):
            with pytest.raises(RequestError, match=REFUSED):
                check_claim(table, Claim(cluster, ADDRESS, "b", broker_id), STRANGER)
    for peer in (OWNER, OWN_MACHINE, Peer("10.0.0.66", trusted_hosts("10.0.0.0/24"))):
        check_claim(table, Claim("c", ADDRESS, "b", 0), peer)


def test_topics_of_a_broker_are_changed_by_it_alone(table: RouteTable) -> None:
    with pytest.raises(RequestError, match=REFUSED):
        table.register_topic("orders", [QueueData("b", 0, 0, 0)], STRANGER)
    unchanged(table)
    table.register_topic("new", [QueueData("b", 1, 1, 6)], OWNER)
    assert route(table, "new") is not None


def test_signs_of_life_from_elsewhere_are_none(table: RouteTable, clock: Clock) -> None:
    clock.now += 100_000
    table.live.touch("c", ADDRESS, STRANGER)
    clock.now += 21_000
    assert [key for key, _ in table.live.expired()] == [("c", ADDRESS)]


def test_a_broker_that_crashed_comes_back_under_a_new_address(table: RouteTable, clock: Clock) -> None:
    elsewhere = Peer("10.0.0.2", trusted_hosts(""))
    again = registration(0, "10.0.0.2:10911", "orders", "other")
    with pytest.raises(
        RequestError, match=REFUSED
    ):  # its host fell silent: the name server does not know yet
        table.register(again, "new", peer=elsewhere)
    clock.now += 121_000
    for (cluster, address), _ in table.live.expired():
        table.unregister_address(cluster, address)
    table.register(again, "new", peer=elsewhere)
    found = route(table)
    assert found is not None
    assert dict(found.broker_datas[0].broker_addrs) == {0: "10.0.0.2:10911"}
    gone(table, "new")  # its process was killed
    table.register(
        registration(0, "10.0.0.3:10911", "orders", "other"),
        "third",
        peer=Peer("10.0.0.3", trusted_hosts("")),
    )


def test_a_broker_comes_back_from_its_host_at_once(table: RouteTable) -> None:
    table.register(registration(0, "10.0.0.1:20911", "orders", "other", state=1), "again", peer=OWNER)
    found = route(table)
    assert found is not None
    assert dict(found.broker_datas[0].broker_addrs) == {0: "10.0.0.1:20911"}


def test_addresses_are_tied_to_where_they_were_registered_from(table: RouteTable) -> None:
    def add(number: int, address: str, peer: Peer) -> None:
        table.register(registration(0, address, "t", "u", name=f"b{number}"), number, peer=peer)

    add(1, "10.0.0.5:22", STRANGER)  # somebody else's
    add(2, "10.0.0.66:10911", STRANGER)
    add(3, "[::ffff:10.0.0.66]:10912", STRANGER)
    add(4, "10.9.9.9:10911", OWN_MACHINE)
    add(5, "broker-5.example:10911", STRANGER)
    add(6, "10.0.0.7:10911", Peer("10.0.0.66", trusted_hosts("10.0.0.7;other.example")))
    tied = route_queries.tied_brokers(table).topic_list
    assert set(tied) == {
        ADDRESS,
        "10.0.0.66:10911",
        "[::ffff:10.0.0.66]:10912",
        "10.9.9.9:10911",
        "10.0.0.7:10911",
    }


@pytest.mark.parametrize(
    ("text", "host", "trusted"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("fe80::/10; broker-a.example ", "fe80::1%eth0", True),
        ("fe80::/10;broker-a.example", "broker-a.example", True),
        ("broker-a.example", "broker-b.example", False),
        ("", "127.0.0.1", False),
    ],
)
def test_listed_hosts(text: str, host: str, trusted: bool) -> None:
    assert (host in trusted_hosts(text)) is trusted


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/40", "host:1", "a b", "10.0.0.1,10.0.0.2"])
def test_what_is_no_host_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no IP address, network or host name"):
        trusted_hosts(text)
