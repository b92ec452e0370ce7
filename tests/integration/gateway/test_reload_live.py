"""Options changed in a broker that runs: each part takes what it can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_gateway.broker import Broker
from broker_gateway.clock import monotonic_ms
from broker_gateway.config import load_config
from broker_gateway.errors import OptionError
from broker_gateway.metrics import Metrics
from broker_gateway.reload import Configuration
from broker_gateway.service.access import Access
from broker_gateway.service.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.messages import message
from store.message_store import MessageStore
from store.record import Host

_CONTEXT = CallContext({"x-mq-client-id": "tester"}, "127.0.0.1:5", None, ("127.0.0.1", 8081))


@asynccontextmanager
async def running(folder: Path, **given: str) -> AsyncIterator[Broker]:
    """A broker without a port."""
    options = {"brokerIP1": "127.0.0.1", "storePathRootDir": str(folder), "lakeAutoCreateTopics": "true"}
    config = load_config(None, {**options, **given}, {})[0]
    store = MessageStore.open(
        folder, broker="broker-a", cluster="c", store_host=Host("127.0.0.1", 1), segment_size=1 << 20
    )
    broker = Broker(Configuration(config), store, Metrics(), Access(None))
    broker.load()
    broker.schedule()
    try:
        yield broker
    finally:
        await broker.stop()
        store.close()


async def send(broker: Broker, topic: str, body: bytes = b"x") -> pb.Status:
    request = rpc.SendMessageRequest(messages=[message(topic, body)]).SerializeToString()
    answer = broker.messaging.SendMessage(request, _CONTEXT)
    if isinstance(answer, rpc.SendMessageResponse):
        return answer.status
    return rpc.SendMessageResponse.FromString(await answer).status


async def receive(broker: Broker, topic: str) -> int:
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name="g"),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=1,
    )
    request.invisible_duration.FromSeconds(10)
    request.long_polling_timeout.FromMilliseconds(5000)
    first = (await broker.messaging.ReceiveMessage(request, _CONTEXT))[0]
    answer = rpc.ReceiveMessageResponse.FromString(first) if isinstance(first, bytes) else first
    return answer.status.code


def test_permissions_topics_and_limits_change_while_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            apply = broker.configuration.apply
            assert (await send(broker, "t")).code == pb.OK
            await apply({"brokerPermission": "4"})
            refused = await send(broker, "t")
            assert (refused.code, "brokerPermission=4" in refused.message) == (pb.FORBIDDEN, True)
            await apply(
                {"brokerPermission": "2", "lakeAutoCreateTopics": "false", "defaultTopicQueueNums": "3"}
            )
            assert (await send(broker, "t")).code == pb.OK
            assert await receive(broker, "t") == pb.FORBIDDEN
            assert (await send(broker, "new")).code == pb.TOPIC_NOT_FOUND
            await apply({"lakeAutoCreateTopics": "true", "brokerPermission": "6"})
            assert (await send(broker, "new")).code == pb.OK
            made = broker.catalog.topic("new")
            assert made is not None
            assert made.write_queues == 3
            await apply({"longPollingEnable": "false", "shortPollingTimeMills": "1"})
            assert await receive(broker, "empty") == pb.MESSAGE_NOT_FOUND
            await apply({"sendThreadPoolQueueCapacity": "1"})
            first, second = await asyncio.gather(send(broker, "t"), send(broker, "t"))
            assert first.code == pb.OK
            assert second.code == pb.TOO_MANY_REQUESTS
            assert "sendThreadPoolQueueCapacity=1" in second.message
            assert broker.admission.send.under_way == 0

    asyncio.run(scenario())


def test_in_flight_limits_change_while_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        given = {"defaultTopicQueueNums": "1", "popInflightMessageThreshold": "1"}
        async with running(tmp_path, **given) as broker:
            for _ in range(5):
                assert (await send(broker, "t")).code == pb.OK
            assert [await receive(broker, "t") for _ in range(2)] == [pb.OK, pb.OK], "not enabled"
            apply = broker.configuration.apply
            await apply(
                {
                    "enablePopMessageThreshold": "true",
                    "longPollingEnable": "false",
                    "shortPollingTimeMills": "1",
                }
            )
            assert await receive(broker, "t") == pb.MESSAGE_NOT_FOUND
            await apply({"popInflightMessageThreshold": "3"})
            assert [await receive(broker, "t") for _ in range(2)] == [pb.OK, pb.MESSAGE_NOT_FOUND]
            await apply({"popInflightMessageThreshold": "1000", "lakeMaxInFlightPerQueue": "3"})
            assert await receive(broker, "t") == pb.MESSAGE_NOT_FOUND, "the lesser of the two counts"
            await apply({"longPollingEnable": "true"})
            waiting = asyncio.create_task(receive(broker, "t"))
            await asyncio.sleep(0.1)
            assert broker.wakeups.waiting == 1
            await apply({"lakeMaxInFlightPerQueue": "4"})
            async with asyncio.timeout(2):
                assert await waiting == pb.OK, "who waits is served once there is room"

    asyncio.run(scenario())


def test_a_refused_change_leaves_the_broker_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            with pytest.raises(OptionError, match="brokerPermission=8"):
                await broker.configuration.apply({"lakeAutoCreateTopics": "false", "brokerPermission": "8"})
            assert (await send(broker, "made-on-first-use")).code == pb.OK

    asyncio.run(scenario())


def test_the_rules_of_retention_change_while_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, cleanResourceInterval="3600000") as broker:
            for _ in range(30):
                assert (await send(broker, "t", b"x" * 100_000)).code == pb.OK
            hours = ";".join(str(hour) for hour in range(24))
            await broker.configuration.apply({"deleteWhen": hours})
            assert await broker.retention.look() == 0
            await broker.configuration.apply({"fileReservedTime": "0"})
            deleted = 0
            async with asyncio.timeout(20):
                while not deleted:  # the snapshot that a start needs must be on disk first
                    deleted = await broker.retention.look()
                    await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_a_clock_that_is_set_back_stops_no_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            began = monotonic_ms()
            monkeypatch.setattr("broker_gateway.broker.now_ms", lambda: 1)
            for second in (10, 20):
                assert (await send(broker, "t")).code == pb.OK
                monkeypatch.setattr("broker_gateway.broker.monotonic_ms", lambda at=began + second * 1000: at)
                broker._housekeep()
            assert broker.administration.statistics.rate("messages_in", ("t",)) == pytest.approx(0.1, rel=0.1)
            monkeypatch.undo()

    asyncio.run(scenario())


@pytest.mark.usefixtures("own_logs")
def test_the_log_level_changes_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from broker_gateway.startup import _log_as, log

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
