"""What the broker says of its messages by the day, from one midnight to the next."""

from __future__ import annotations

from broker_gateway.runtime.scheduled_tasks import until_midnight_s
from lakebroker_testing.broker import InProcessBroker


def figures(broker: InProcessBroker) -> list[int]:
    """Stored by yesterday morning, by this morning, by now; the same of what was delivered."""
    table = broker.broker.administration.runtime.table()
    return [
        int(table[f"msg{what}Total{when}"])
        for what in ("Put", "Get")
        for when in ("YesterdayMorning", "TodayMorning", "TodayNow")
    ]


def test_messages_of_today_and_yesterday() -> None:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.create_group("g")
        for _ in range(3):
            broker.send("t", b"x")
        assert len(broker.receive("t", "g", batch=1)[1]) == 1
        assert figures(broker) == [0, 0, 3, 0, 0, 1]
        broker.jump(until_midnight_s() + 1)
        broker.send("t", b"x")
        assert figures(broker) == [0, 3, 4, 0, 1, 1]
        broker.jump(until_midnight_s() + 1)
        assert len(broker.receive("t", "g", batch=1)[1]) == 1
        assert figures(broker) == [3, 4, 4, 1, 1, 2]
