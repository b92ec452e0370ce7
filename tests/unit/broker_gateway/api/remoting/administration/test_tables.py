"""Whole tables: how many are made, who waits, pages of them, and others that are served meanwhile."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from broker_gateway.api.remoting import consume_stats, tables
from broker_gateway.api.remoting.concurrency_limit import ConcurrencyLimit
from broker_gateway.api.remoting.consume_stats import SLICE, ConsumeStats
from broker_gateway.api.remoting.pages import MAX_PAGE, PageFields
from broker_gateway.api.remoting.tables import WAITING, WAITING_ON_A_CONNECTION, Tables, joined
from broker_gateway.messaging.offsets import Progress
from broker_gateway.metadata.catalog import Catalog, Group
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.protocol.frame import MAX_FRAME


class Peer:
    """A connection whose other end reads when `reads` is set."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = asyncio.Event()
        if reads:
            self.reads.set()

    async def writable(self) -> None:
        await self.reads.wait()


class Maker:
    """Makes tables when `go` is set; how many at once."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = self.most = self.made = 0

    async def make(self) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        self.made += 1
        return self.made


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_few_are_inside_and_many_are_refused() -> None:
    async def test() -> None:
        gate, inside, leave = ConcurrencyLimit(2, 3, "tables"), [], asyncio.Event()

        async def enter(number: int) -> None:
            async with gate:
                inside.append(number)
                await leave.wait()

        tasks = [asyncio.create_task(enter(number)) for number in range(10)]
        await settle()
        assert inside == [0, 1]
        refused = [each.exception() for each in tasks if each.done()]
        assert len(refused) == 5
        assert all(
            isinstance(each, RequestError) and each.code == ResponseCode.SYSTEM_BUSY for each in refused
        )
        tasks[2].cancel()
        leave.set()
        await asyncio.wait(tasks)
        assert inside == [0, 1, 3, 4]
        assert gate.waiting == 0

    asyncio.run(test())


def test_one_table_is_made_of_a_version_for_all_who_wait() -> None:
    async def test() -> None:
        tables, maker = Tables(), Maker()
        version = [1]

        def ask() -> asyncio.Task[int]:
            return asyncio.create_task(tables.table(Peer(), "t", lambda: version[0], maker.make))  # type: ignore[arg-type]

        tasks = [ask() for _ in range(WAITING + 10)]
        await settle()
        maker.go.set()
        await asyncio.wait(tasks)
        busy = [each for each in tasks if each.exception() is not None]
        assert len(busy) == 8
        assert {each.result() for each in tasks if each not in busy} == {1}
        assert await ask() == 1
        version[0] = 2
        assert await ask() == 2
        assert maker.most == 1

    asyncio.run(test())


def test_a_table_without_versions_is_made_anew_for_who_asks_after_it_was_begun() -> None:
    async def test() -> None:
        tables, maker = Tables(), Maker()

        def ask() -> asyncio.Task[int]:
            return asyncio.create_task(tables.table(Peer(), "t", lambda: None, maker.make))  # type: ignore[arg-type]

        first = ask()
        await settle()
        later = [ask() for _ in range(10)]
        await settle()
        maker.go.set()
        assert await first == 1
        assert [await each for each in later] == [2] * 10

    asyncio.run(test())


def test_a_refusal_is_kept_too() -> None:
    async def test() -> None:
        tables, asked = Tables(), []

        async def refuse() -> None:
            asked.append(1)
            raise RequestError("too large")

        for _ in range(3):
            with pytest.raises(RequestError, match="too large"):
                await tables.table(Peer(), "t", lambda: 1, refuse)  # type: ignore[arg-type]
        assert asked == [1]

    asyncio.run(test())


def test_who_does_not_read_waits_by_itself() -> None:
    async def test() -> None:
        tables, maker = Tables(), Maker()
        maker.go.set()
        deaf = Peer(reads=False)
        tasks = [
            asyncio.create_task(tables.table(deaf, "t", lambda: 1, maker.make))  # type: ignore[arg-type]
            for _ in range(WAITING_ON_A_CONNECTION + 5)
        ]
        await settle()
        assert sum(each.done() for each in tasks) == 5, "more are refused"
        assert maker.made == 0, "nothing is made for who does not read"
        assert await tables.table(Peer(), "u", lambda: 1, maker.make) == 1  # type: ignore[arg-type]
        deaf.reads.set()
        await asyncio.wait(tasks)

    asyncio.run(test())


def test_a_table_without_room_in_a_frame_is_given_up_early() -> None:
    taken = []

    def members() -> Any:
        for number in range(1000):
            taken.append(number)
            yield bytes(1 << 20)

    with pytest.raises(RequestError, match="ask for pages"):
        joined(b"{", members(), b"}", "too much; ask for pages")
    assert len(taken) == MAX_FRAME >> 20
    assert joined(b"{", [b"1", b"2"], b"}", "") == b"{1,2}"


VERSION = DataVersion(0, 7, 5)
CURRENT = {"dataVersion": '{"counter":7,"stateVersion":0,"timestamp":5}'}
OLD = {"dataVersion": '{"counter":6,"stateVersion":0,"timestamp":5}'}


@pytest.mark.parametrize(
    ("fields", "total", "expected"),
    [
        ({"seq": "0", "dataVersion": "", "most": "10"}, 100, (0, 10)),
        ({"seq": "10", "most": "10", **CURRENT}, 100, (10, 20)),
        ({"seq": "10", "most": "10", **OLD}, 100, (0, 10)),
        ({"seq": "10", "most": "10"}, 100, (0, 10)),
        ({"seq": "95", "most": "10", **CURRENT}, 100, (95, 100)),
        ({"seq": "200", "most": "10", **CURRENT}, 100, (100, 100)),
        ({"seq": "0"}, 100_000, (0, MAX_PAGE)),
        ({"most": "2147483647"}, 100_000, (0, MAX_PAGE)),
        ({"seq": "0", "most": "10"}, 11, (0, 9)),
        ({"seq": "9", "most": "10", **CURRENT}, 11, (9, 11)),
        ({"seq": "0", "most": "1"}, 2, (0, 1)),
    ],
)
def test_pages(fields: dict[str, str], total: int, expected: tuple[int, int]) -> None:
    names = PageFields("seq", "most")
    assert names.asked(Fields(fields))
    assert names.page(Fields(fields), VERSION, total) == expected


@pytest.mark.parametrize("total", [0, 1, 2, 9, 10, 11, 20, 21, 22])
def test_a_client_gets_every_entry_by_pages(total: int) -> None:
    """As RocketMQ's clients ask: until they have all but one."""
    names, got = PageFields("seq", "most"), 0
    version = ""
    while True:
        asked = Fields({"seq": str(got), "most": "10", "dataVersion": version})
        first, end = names.page(asked, VERSION, total)
        assert first == got
        got, version = end, CURRENT["dataVersion"]
        if got >= total - 1:
            break
    assert got == total


def test_pages_that_make_no_sense_are_refused() -> None:
    names = PageFields("seq", "most")
    assert not names.asked(Fields({}))
    for fields in ({"seq": "-1"}, {"most": "0"}):
        with pytest.raises(RequestError, match="at least one"):
            names.page(Fields(fields), VERSION, 5)


def test_every_change_of_a_group_makes_another_version() -> None:
    catalog = Catalog()
    seen = [catalog.groups_version]
    for change in (
        lambda: catalog.put_group(Group("g")),
        lambda: catalog.put_group(Group("g", 3)),
        lambda: catalog.delete_group("g", lambda group: None),
    ):
        change()
        seen.append(catalog.groups_version)
    assert len(set(seen)) == 4
    catalog.delete_group("g", lambda group: None)
    assert catalog.groups_version == seen[-1]


class Queues:
    """An administration with topics of 1,024 queues; counts the queues that were looked at."""

    broker, address = "b", "127.0.0.1:1"

    def __init__(self, groups: int = 0) -> None:
        self.looked_at = 0
        self.offsets = self
        self.groups = SimpleNamespace(all=lambda: [Group(f"g{number}") for number in range(groups)])
        self.statistics = SimpleNamespace(rate=lambda counter, key: 0.0)

    def topics_by_group(self) -> dict[str, set[str]]:
        return {group.name: {"t"} for group in self.groups.all()}

    def read_queues(self, topic: str) -> int:
        return 1024

    def progress(self, group: str, topic: str, queue_id: int) -> Progress:
        self.looked_at += 1
        return Progress(topic, queue_id, 10, 4, 6, 0)


async def ticks_during(work: Any) -> tuple[Any, int]:
    """What the work gives, and how many ticks others had meanwhile."""
    ticks = 0

    async def count() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = await work
    counting.cancel()
    return found, ticks


def test_a_topic_named_many_times_is_looked_at_once() -> None:
    queues = Queues()
    stats = ConsumeStats(queues)  # type: ignore[arg-type]
    body, ticks = asyncio.run(ticks_during(stats.of_group("g", ["t"] * 1000)))
    assert queues.looked_at == 1024
    assert body.count(b'"queueId"') == 1024
    assert ticks >= 1024 / SLICE


def test_more_queues_than_a_frame_holds_are_refused_before_any_is_looked_at() -> None:
    queues = Queues()
    stats = ConsumeStats(queues)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"204800 queues take more .* fewer topics"):
        asyncio.run(stats.of_group("g", [f"t{number}" for number in range(200)]))
    assert queues.looked_at == 0


def test_the_progress_of_all_groups_is_walked_once() -> None:
    queues = Queues(groups=5)
    body, ticks = asyncio.run(ticks_during(ConsumeStats(queues).of_all(in_order=False)))  # type: ignore[arg-type]
    assert queues.looked_at == 5 * 1024
    assert ticks >= 5 * 1024 / SLICE
    assert body.startswith(b'{"brokerAddr":"127.0.0.1:1","consumeStatsList":[{"g0":[{"consumeTps":0.0,')
    assert body.endswith(b'],"totalDiff":%d,"totalInflightDiff":%d}' % (5 * 1024 * 6, 5 * 1024 * 2))
    assert body.count(b'"queueId"') == 5 * 1024
    body = asyncio.run(ConsumeStats(queues).of_all(in_order=True))  # type: ignore[arg-type]
    assert json.loads(body)["consumeStatsList"] == [{f"g{number}": []} for number in range(5)]


def test_the_progress_of_too_many_groups_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (consume_stats, tables):
        monkeypatch.setattr(module, "MAX_BODY", 1 << 20)
    queues = Queues(groups=1000)
    with pytest.raises(RequestError, match="one group at a time"):
        asyncio.run(ConsumeStats(queues).of_all(in_order=False))  # type: ignore[arg-type]
    assert queues.looked_at < 20 * 1024
