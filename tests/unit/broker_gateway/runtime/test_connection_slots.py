"""Connections give way to others before they have called, never after; no address takes what all need."""

from __future__ import annotations

from broker_gateway.runtime.connection_slots import ConnectionSlot, ConnectionSlots


class Peer:
    def __init__(self) -> None:
        self.closed = 0
        self.place: ConnectionSlot | None = None

    def close(self) -> None:
        self.closed += 1


def take(places: ConnectionSlots, address: str) -> Peer:
    peer = Peer()
    peer.place = places.take(address, peer.close)
    return peer


def test_an_address_has_half_of_the_places() -> None:
    places = ConnectionSlots(lambda: 10)
    theirs = [take(places, "10.0.0.1") for _ in range(8)]
    assert [each.closed for each in theirs] == [1, 1, 1, 0, 0, 0, 0, 0]
    others = [take(places, "10.0.0.2") for _ in range(5)]
    assert all(each.place is not None and not each.closed for each in others)
    assert places.count == 10


def test_who_has_called_stays_and_the_next_one_is_refused() -> None:
    places = ConnectionSlots(lambda: 4, 3)
    living = [take(places, "::1") for _ in range(3)]
    for each in living:
        assert each.place is not None
        each.place.called()
    assert take(places, "::1").place is None
    other = take(places, "10.0.0.2")
    assert other.place is not None
    third = take(places, "10.0.0.3")
    assert third.place is not None
    assert other.closed
    assert not any(each.closed for each in living)
    for each in (*living, other, third):
        assert each.place is not None
        each.place.leave()
        each.place.leave()
    assert places.count == 0
    assert take(places, "::1").place is not None


def test_a_log_that_grows_takes_places_back() -> None:
    most = 10
    places = ConnectionSlots(lambda: most, 100)
    peers = [take(places, f"10.0.0.{n}") for n in range(10)]
    most = 6
    assert take(places, "10.0.1.1").place is None or places.count <= 10
    assert peers[0].closed


def test_addresses_of_one_host_count_together() -> None:
    places = ConnectionSlots(lambda: 100, 2)
    for address in ("2001:db8::1", "2001:db8::ffff:1"):
        found = take(places, address)
        assert found.place is not None
        found.place.called()
    assert take(places, "2001:db8::2").place is None
    assert take(places, "2001:db8:0:1::2").place is not None
    for address in ("10.0.0.1", "::ffff:10.0.0.1"):
        found = take(places, address)
        assert found.place is not None
        found.place.called()
    assert take(places, "10.0.0.1").place is None
    assert take(places, "10.0.0.2").place is not None
