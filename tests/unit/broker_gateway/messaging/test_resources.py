"""Topics and groups as calls find them: made on first use only where that is on, and refused with the remedy."""

from __future__ import annotations

import pytest

from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from lakebroker_testing.broker import InProcessBroker

PEER = "10.0.0.1:1000"


def resources(broker: InProcessBroker) -> Resources:
    return broker.broker.parts.resources


def refusal(broker: InProcessBroker, work: object) -> Reason:
    assert callable(work)
    with pytest.raises(ServiceError) as refused:
        broker.do(work)
    return refused.value.reason


def test_a_topic_is_made_on_first_use_where_that_is_on() -> None:
    with InProcessBroker(lakeAutoCreateTopics="true", defaultTopicQueueNums="3") as broker:
        assert broker.do(lambda: resources(broker).topic("t")).queues == 3
        for name in ("%RETRY%g", "%DLQ%g"):
            with pytest.raises(ServiceError, match="comes with the first message of its group") as refused:
                broker.do(lambda name=name: resources(broker).topic(name))
            assert refused.value.reason is Reason.TOPIC_NOT_FOUND


def test_a_topic_that_is_missing_is_named_with_the_remedy() -> None:
    with InProcessBroker(lakeAutoCreateTopics="false") as broker:
        with pytest.raises(
            ServiceError, match="lakebroker topic create t`, or set lakeAutoCreateTopics=true"
        ):
            broker.do(lambda: resources(broker).topic("t"))
        assert resources(broker).find_topic("t") is None
        assert refusal(broker, lambda: resources(broker).known_topic("t")) is Reason.TOPIC_NOT_FOUND
        assert refusal(broker, lambda: resources(broker).find_topic("a b")) is Reason.ILLEGAL_TOPIC


def test_a_group_is_made_for_who_uses_it() -> None:
    with InProcessBroker(retryMaxTimes="4") as broker:
        made = broker.do(lambda: resources(broker).group("g", PEER))
        assert (made.retry_max_times, made.first_used_by) == (4, "10.0.0.1")
        assert broker.do(lambda: resources(broker).group("g", "10.0.0.2:1")) is made


def test_a_group_is_not_made_where_that_is_off() -> None:
    with InProcessBroker(autoCreateSubscriptionGroup="false") as broker:
        with pytest.raises(ServiceError, match="lakebroker group create g"):
            broker.do(lambda: resources(broker).group("g", PEER))
        broker.create_group("g")
        assert broker.do(lambda: resources(broker).group("g", PEER)).name == "g"


def test_dead_letters_have_a_topic_of_one_queue() -> None:
    with InProcessBroker(lakeAutoCreateTopics="false") as broker:
        made = broker.do(lambda: resources(broker).dead_letters("%DLQ%g"))
        assert made.queues == 1
        assert broker.do(lambda: resources(broker).dead_letters("%DLQ%g")) is made
