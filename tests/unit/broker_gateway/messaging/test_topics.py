"""Topics by hand: checked as a whole, journaled or not done, deleted with what groups had of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.topics import Topics
from broker_gateway.metadata import catalog
from broker_gateway.metadata.catalog import MAX_QUEUES, CatalogFullError, Topic
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def topics(broker: InProcessBroker) -> Topics:
    return broker.broker.parts.topics


@pytest.mark.parametrize(
    ("topic", "reason", "named"),
    [
        (Topic("", 1, 1), Reason.ILLEGAL_TOPIC, "empty"),
        (Topic("a b", 1, 1), Reason.ILLEGAL_TOPIC, "'a b'"),
        (Topic("TBW102", 1, 1), Reason.ILLEGAL_TOPIC, "system topic"),
        (Topic("t", 0, 1), Reason.BAD_REQUEST, "readQueueNums 0"),
        (Topic("t", 1, MAX_QUEUES + 1), Reason.BAD_REQUEST, f"writeQueueNums {MAX_QUEUES + 1}"),
        (Topic("t", 1, 1, 8), Reason.BAD_REQUEST, "perm 8"),
        (Topic("t", 1, 1, -1), Reason.BAD_REQUEST, "perm -1"),
    ],
)
def test_what_no_topic_can_be_is_refused_by_its_reason(
    broker: InProcessBroker, topics: Topics, topic: Topic, reason: Reason, named: str
) -> None:
    with pytest.raises(ServiceError, match=named) as refused:
        broker.do(lambda: topics.put(topic, shrink=False))
    assert refused.value.reason is reason
    assert broker.broker.catalog.topic("t") is None


def test_one_that_is_refused_leaves_all_of_a_list_undone(broker: InProcessBroker, topics: Topics) -> None:
    with pytest.raises(ServiceError, match="perm 9"):
        broker.run(topics.put_all(Topic("a", 1, 1), Topic("b", 1, 1, 9)))
    assert broker.broker.catalog.topic("a") is None
    broker.run(topics.put_all(*(Topic(f"t{number}", 1, 1) for number in range(250))))
    assert broker.broker.catalog.topic("t249") is not None


def test_queues_become_fewer_only_when_that_is_asked_for(broker: InProcessBroker, topics: Topics) -> None:
    assert broker.do(lambda: topics.put(Topic("t", 8, 8), shrink=False)) == (
        broker.broker.catalog.topic("t"),
        True,
    )
    assert broker.do(lambda: topics.put(Topic("t", 2, 2), shrink=False))[0].queues == 8
    assert broker.do(lambda: topics.put(Topic("t", 2, 2), shrink=True))[0].queues == 2
    broker.crash()
    found = broker.broker.catalog.topic("t")
    assert found is not None
    assert found.queues == 2


def test_a_catalog_that_is_full_says_so(
    broker: InProcessBroker, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "MAX_TOPICS", 0)
    with pytest.raises(CatalogFullError, match="0 topics exist"):
        broker.do(lambda: topics.put(Topic("t", 1, 1), shrink=False))


def test_of_topics_without_room_for_all_none_is_created(
    broker: InProcessBroker, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("there")
    known = {topic.name for topic in broker.broker.catalog.topics()}
    monkeypatch.setattr(catalog, "MAX_TOPICS", len(known) + 1)
    with pytest.raises(CatalogFullError, match="before creating 'a' and 1 more"):
        broker.run(topics.put_all(Topic("a", 1, 1), Topic("b", 1, 1), Topic("there", 1, 1)))
    assert {topic.name for topic in broker.broker.catalog.topics()} == known


def test_a_deleted_topic_takes_the_state_of_groups_along_and_begins_behind_its_messages(
    broker: InProcessBroker, topics: Topics
) -> None:
    broker.create_topic("t")
    broker.send("t", b"1", b"2")
    broker.receive("t", "g")
    told: list[str] = []
    broker.broker.catalog.listen(removed=told.append)
    broker.do(lambda: topics.delete("t"))
    assert (broker.broker.catalog.topic("t"), broker.committed("t", "g"), told) == (None, None, ["t"])
    broker.do(lambda: topics.delete("t"))
    assert told == ["t"], "it was deleted already"
    broker.create_topic("t")
    broker.send("t", b"3")
    assert [each.body for each in broker.receive("t", "g")[1]] == [b"3"]


@pytest.mark.parametrize("name", ["", " ", "TBW102"])
def test_a_topic_that_cannot_be_deleted_is_named(broker: InProcessBroker, topics: Topics, name: str) -> None:
    with pytest.raises(ServiceError) as refused:
        broker.do(lambda: topics.delete(name))
    assert refused.value.reason is Reason.ILLEGAL_TOPIC
