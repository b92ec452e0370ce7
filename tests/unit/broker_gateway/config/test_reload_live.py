"""Options changed in a broker that runs: each part takes what it can."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from broker_gateway.config.gateway import load_config
from broker_gateway.config.reload import Configuration
from broker_gateway.runtime.errors import OptionError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    options = {"lakeAutoCreateTopics": "true", "defaultTopicQueueNums": "1"}
    with InProcessBroker(**options) as broker:
        yield broker


def change(broker: InProcessBroker, **options: str) -> None:
    broker.run(broker.broker.configuration.apply(options))


def send(broker: InProcessBroker, topic: str, body: bytes = b"x") -> pb.Status:
    status: pb.Status = broker.send(topic, body).status
    return status


def receive(broker: InProcessBroker, topic: str) -> int:
    return broker.receive(topic, "g", batch=1)[0]


def test_permissions_topics_and_limits_change_while_it_runs(broker: InProcessBroker) -> None:
    assert send(broker, "t").code == pb.OK
    change(broker, brokerPermission="4")
    refused = send(broker, "t")
    assert (refused.code, "brokerPermission=4" in refused.message) == (pb.FORBIDDEN, True)
    change(broker, brokerPermission="2", lakeAutoCreateTopics="false", defaultTopicQueueNums="3")
    assert send(broker, "t").code == pb.OK
    assert receive(broker, "t") == pb.FORBIDDEN
    assert send(broker, "new").code == pb.TOPIC_NOT_FOUND
    change(broker, lakeAutoCreateTopics="true", brokerPermission="6")
    assert send(broker, "new").code == pb.OK
    made = broker.broker.catalog.topic("new")
    assert made is not None
    assert made.write_queues == 3
    change(broker, longPollingEnable="false", shortPollingTimeMills="1")
    short = broker.begin_receive("empty", "g", wait_ms=5000)
    broker.advance(0.001)
    assert short.response[0].status.code == pb.MESSAGE_NOT_FOUND
    change(broker, sendThreadPoolQueueCapacity="1")
    with broker.one_tick():
        requests = [send_request(message("t", body)) for body in (b"1", b"2")]
        first, second = [broker.begin("SendMessage", each) for each in requests]
    assert first.response.status.code == pb.OK
    assert second.response.status.code == pb.TOO_MANY_REQUESTS
    assert "sendThreadPoolQueueCapacity=1" in second.response.status.message
    assert broker.broker.admission.send.under_way == 0


def test_in_flight_limits_change_while_it_runs(broker: InProcessBroker) -> None:
    change(broker, popInflightMessageThreshold="1")
    for _ in range(5):
        assert send(broker, "t").code == pb.OK
    assert [receive(broker, "t") for _ in range(2)] == [pb.OK, pb.OK], "not enabled"
    change(broker, enablePopMessageThreshold="true")
    assert receive(broker, "t") == pb.MESSAGE_NOT_FOUND
    change(broker, popInflightMessageThreshold="3")
    assert [receive(broker, "t") for _ in range(2)] == [pb.OK, pb.MESSAGE_NOT_FOUND]
    change(broker, popInflightMessageThreshold="1000", lakeMaxInFlightPerQueue="3")
    assert receive(broker, "t") == pb.MESSAGE_NOT_FOUND, "the lesser of the two counts"
    waiting = broker.begin_receive("t", "g", batch=1, wait_ms=5000)
    assert broker.broker.wakeups.waiting == 1
    change(broker, lakeMaxInFlightPerQueue="4")
    assert len(waiting.messages) == 1, "who waits is served once there is room"


def test_a_refused_change_leaves_the_broker_as_it_was(broker: InProcessBroker) -> None:
    with pytest.raises(OptionError, match="brokerPermission=8"):
        change(broker, lakeAutoCreateTopics="false", brokerPermission="8")
    assert send(broker, "made-on-first-use").code == pb.OK


def test_the_rules_of_retention_change_while_it_runs(broker: InProcessBroker) -> None:
    for _ in range(30):
        assert send(broker, "t", b"x" * 100_000).code == pb.OK
    first = broker.store.min_offset
    change(broker, deleteWhen=";".join(str(hour) for hour in range(24)))
    broker.advance(30.0)
    assert broker.store.min_offset == first
    change(broker, fileReservedTime="0")
    for _ in range(100):
        broker.flush()
        broker.advance(10.0)  # the snapshot that a start needs must be on disk first
        if broker.store.min_offset > first:
            break
    assert broker.store.min_offset > first


def test_a_clock_that_is_set_back_stops_no_statistics(broker: InProcessBroker) -> None:
    broker.clock.set_wall(1)
    for _ in range(2):
        assert send(broker, "t").code == pb.OK
        broker.advance(10.0)
    rate = broker.broker.administration.statistics.rate("messages_in", ("t",))
    assert rate == pytest.approx(0.1, rel=0.1)


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Logging may be configured in this process; later tests log as before."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("own_logs")
def test_the_log_level_changes_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from broker_gateway.app.startup import _log_as, log

    running = Configuration(load_config(None, {"lakeLogFormat": "json"}, {})[0])
    running.on_change(_log_as)
    _log_as(running.current)
    log.debug("not said")
    asyncio.run(running.apply({"lakeLogLevel": "debug"}))
    log.debug("said")
    asyncio.run(running.apply({"lakeLogLevel": "error"}))
    log.warning("not said either")
    asyncio.run(running.apply({"lakeLogLevel": "info"}))
    told = capsys.readouterr().err
    assert '"said"' in told
    assert "not said" not in told
