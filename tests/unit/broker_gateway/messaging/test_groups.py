"""Consumer groups by hand: checked, listed beside the system's, deleted with or without their offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.messaging.groups import Groups
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata import catalog
from broker_gateway.metadata.catalog import CatalogFullError, Group
from broker_gateway.metadata.system_groups import SYSTEM_GROUPS
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def groups(broker: InProcessBroker) -> Groups:
    return broker.broker.parts.groups


def test_a_group_is_made_changed_and_kept(broker: InProcessBroker, groups: Groups) -> None:
    assert broker.do(lambda: groups.put(Group("g", 3)))[1]
    assert not broker.do(lambda: groups.put(Group("g", 5)))[1]
    broker.crash()
    assert broker.broker.parts.groups.known("g").retry_max_times == 5


@pytest.mark.parametrize("name", ["", "a b", "CID_RMQ_SYS_mine", "x" * 256])
def test_a_name_that_no_group_may_have_is_refused(broker: InProcessBroker, groups: Groups, name: str) -> None:
    with pytest.raises(ServiceError) as refused:
        broker.do(lambda: groups.put(Group(name)))
    assert refused.value.reason is Reason.ILLEGAL_CONSUMER_GROUP
    assert [each.name for each in groups.all()] == list(SYSTEM_GROUPS)


def test_the_systems_are_known_and_stay(broker: InProcessBroker, groups: Groups) -> None:
    (name, *_) = SYSTEM_GROUPS
    assert groups.known(name).name == name
    with pytest.raises(ServiceError, match=name):
        broker.do(lambda: groups.delete(name, clean_offsets=True))
    with pytest.raises(ServiceError) as unknown:
        groups.known("nobody")
    assert unknown.value.reason is Reason.CONSUMER_GROUP_NOT_FOUND


def test_a_full_catalog_says_so(
    broker: InProcessBroker, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "MAX_GROUPS", 0)
    with pytest.raises(CatalogFullError, match="0 groups exist"):
        broker.do(lambda: groups.put(Group("g")))


@pytest.mark.parametrize("names", [("a", "b"), ("a", "no group!")])
def test_of_groups_without_room_or_a_name_none_is_created(
    broker: InProcessBroker, groups: Groups, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(catalog, "MAX_GROUPS", 1)
    with pytest.raises((CatalogFullError, ServiceError)):
        broker.run(groups.put_all(*map(Group, names)))
    assert not list(broker.broker.catalog.groups())


@pytest.mark.parametrize("clean", [True, False])
def test_offsets_of_a_deleted_group_go_only_when_that_is_asked_for(
    broker: InProcessBroker, groups: Groups, clean: bool
) -> None:
    broker.create_group("g")
    broker.send("t", b"1")
    broker.ack("t", "g", *broker.receive("t", "g")[1])
    told: list[str] = []
    broker.broker.catalog.listen(removed=told.append)
    broker.do(lambda: groups.delete("g", clean_offsets=clean))
    assert told == ["%RETRY%g"]
    assert broker.committed("t", "g") == (None if clean else 1)
    broker.crash()
    assert broker.committed("t", "g") == (None if clean else 1)


def test_offsets_that_outlived_their_group_can_be_cleaned(broker: InProcessBroker, groups: Groups) -> None:
    broker.create_group("g")
    broker.receive("t", "g")
    broker.do(lambda: groups.delete("g", clean_offsets=False))
    broker.do(lambda: groups.delete("g", clean_offsets=True))
    broker.crash()
    assert broker.committed("t", "g") is None
