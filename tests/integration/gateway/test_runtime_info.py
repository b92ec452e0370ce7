"""What the broker says of its messages by the day, from one midnight to the next."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker_gateway.broker import Broker
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from tests.integration.gateway.test_reload_live import receive, running, send


def figures(broker: Broker) -> list[int]:
    """Stored by yesterday morning, by this morning, by now; the same of what was delivered."""
    table = broker.administration.runtime.table()
    return [
        int(table[f"msg{what}Total{when}"])
        for what in ("Put", "Get")
        for when in ("YesterdayMorning", "TodayMorning", "TodayNow")
    ]


def test_messages_of_today_and_yesterday(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as broker:
            for _ in range(3):
                assert (await send(broker, "t")).code == pb.OK
            assert await receive(broker, "t") == pb.OK
            assert figures(broker) == [0, 0, 3, 0, 0, 1]
            (midnight,) = (each for each in broker.tasks.all() if each.name == "broker-statistics")
            midnight.work()
            assert (await send(broker, "t")).code == pb.OK
            assert figures(broker) == [0, 3, 4, 0, 1, 1]
            midnight.work()
            assert await receive(broker, "t") == pb.OK
            assert figures(broker) == [3, 4, 4, 1, 1, 2]

    asyncio.run(scenario())
