"""The in-process broker itself: its clock, its ends and beginnings, what it lets fail."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebroker_testing
from broker_gateway.runtime import clock
from broker_gateway.transport.context import RpcError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.calls import NotAnsweredError
from lakebroker_testing.clock import EscapedError, ManualClock
from lakebroker_testing.messages import message, receive_request, send_request
from store.errors import StoreDamagedError
from tests.suite.evidence import rounds


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def test_a_message_goes_through(broker: InProcessBroker) -> None:
    answer = broker.send("orders", b"one", b"two", tag="a")
    assert answer.status.code == pb.OK
    assert [entry.offset for entry in answer.entries] == [0, 1]
    code, messages = broker.receive("orders", "billing")
    assert (code, [each.body for each in messages]) == (pb.OK, [b"one", b"two"])
    assert broker.ack("orders", "billing", *messages).status.code == pb.OK
    assert broker.committed("orders", "billing") == 2
    assert broker.receive("orders", "billing") == (pb.MESSAGE_NOT_FOUND, [])


def test_every_call_of_the_public_api(broker: InProcessBroker) -> None:
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)])
    topic = pb.Resource(name="orders")
    route = broker.call("QueryRoute", rpc.QueryRouteRequest(topic=topic, endpoints=endpoints))
    assert len(route.message_queues) == 1
    asked = rpc.QueryAssignmentRequest(topic=topic, group=pb.Resource(name="billing"), endpoints=endpoints)
    assert len(broker.call("QueryAssignment", asked).assignments) == 1
    broker.send("orders", b"one")
    _, (first,) = broker.receive("orders", "billing")
    changed = broker.change_invisible("orders", "billing", first, 20_000)
    assert changed.status.code == pb.OK
    first.system_properties.receipt_handle = changed.receipt_handle
    assert broker.dead_letter("orders", "billing", first).status.code == pb.OK
    assert broker.committed("orders", "billing") == 1
    assert broker.committed("orders", "nobody") is None
    broker.reset("orders", "billing", 0, 0)
    assert broker.committed("orders", "billing") == 0
    assert len(broker.receive("orders", "billing")[1]) == 1


def test_time_stands_still_until_it_is_moved(broker: InProcessBroker) -> None:
    broker.send("orders", b"one")
    broker.receive("orders", "billing", invisible_ms=30_000)
    begun = broker.clock.now_ms
    waiting = broker.begin_receive("orders", "billing", wait_ms=60_000)
    broker.advance(29.0)
    assert not waiting.done
    with pytest.raises(NotAnsweredError, match="ReceiveMessage waits"):
        _ = waiting.response
    broker.advance(2.0)
    assert [each.system_properties.delivery_attempt for each in waiting.messages] == [2]
    assert broker.clock.now_ms == begun + 31_000 == clock.now_ms()


def test_a_poll_ends_when_its_time_is_over(broker: InProcessBroker) -> None:
    waiting = broker.begin_receive("orders", "billing", wait_ms=5_000)
    broker.advance(4.999)
    assert not waiting.done
    broker.advance(0.001)
    assert waiting.messages == []


def test_a_jump_runs_what_is_due_once(broker: InProcessBroker) -> None:
    (task,) = [task for task in broker.broker.tasks.all() if task.name == "redelivery"]
    broker.jump(3600.0)
    assert task.runs == 1
    broker.advance(1.0)
    assert task.runs == 11


def test_the_wall_clock_may_go_back(broker: InProcessBroker) -> None:
    broker.clock.set_wall(broker.clock.now_ms - 60_000)
    before = broker.clock.now_ms
    broker.send("orders", b"one")
    _, (found,) = broker.receive("orders", "billing")
    assert found.system_properties.store_timestamp.ToMilliseconds() == before


def test_a_client_that_hangs_up(broker: InProcessBroker) -> None:
    waiting = broker.begin_receive("orders", "billing", wait_ms=5_000)
    broker.hang_up(waiting)
    broker.send("orders", b"one")
    assert not waiting.done
    assert [each.body for each in broker.receive("orders", "billing")[1]] == [b"one"]


def test_a_call_ends_at_its_deadline(broker: InProcessBroker) -> None:
    request = receive_request("orders", "billing", wait_ms=9_000)
    waiting = broker.client("other").begin("ReceiveMessage", request, timeout=10.0)
    broker.advance(9.0)
    assert waiting.messages == []
    late = broker.begin("SendMessage", send_request(message("orders", b"x")), timeout=1.0)
    broker.advance(2.0)
    assert late.response.status.code == pb.OK


def test_a_call_with_bytes_that_are_no_request(broker: InProcessBroker) -> None:
    with pytest.raises(RpcError, match="no SendMessageRequest"):
        broker.call("SendMessage", b"\xff\xff")


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_what_was_answered_is_there_afterwards(broker: InProcessBroker, end: str) -> None:
    broker.send("orders", b"one", b"two", b"three")
    _, messages = broker.receive("orders", "billing", batch=2, invisible_ms=30_000)
    broker.ack("orders", "billing", messages[0])
    broker.create_topic("quiet")
    waiting = broker.begin_receive("quiet", "billing", wait_ms=30_000)
    getattr(broker, end)()
    assert waiting.done is (end == "restart")
    assert broker.store.recovered.clean is (end == "restart")
    assert broker.committed("orders", "billing") == 1
    assert [each.body for each in broker.receive("orders", "billing")[1]] == [b"three"]
    broker.advance(31.0)
    assert b"two" in [each.body for each in broker.receive("orders", "billing")[1]]


def test_sync_flush_is_waited_for() -> None:
    with InProcessBroker(flushDiskType="SYNC_FLUSH") as broker:
        broker.create_topic("orders")
        assert broker.send("orders", b"one").status.code == pb.OK
        assert broker.store.flushed_offset == broker.store.max_offset


def test_a_full_disk_at_the_next_append(broker: InProcessBroker) -> None:
    broker.store.inject("append", OSError(errno.ENOSPC, "No space left on device"), after=1)
    assert broker.send("orders", b"one").status.code == pb.OK
    refused = broker.send("orders", b"two")
    assert refused.status.code == pb.INTERNAL_SERVER_ERROR
    assert "No space left" in refused.status.message
    assert broker.send("orders", b"three").entries[0].offset == 1
    with pytest.raises(ValueError, match="cannot be made to fail"):
        broker.store.inject("sing", OSError())


def test_a_flipped_byte(broker: InProcessBroker) -> None:
    broker.send("orders", b"one" * 50)
    path = broker.flip_byte("commitlog/*", broker.store.max_offset - 200)
    assert path.parent.name == "commitlog"
    with pytest.raises(ValueError, match="none at"):
        broker.flip_byte("commitlog/*", 1 << 40)
    with pytest.raises(ValueError, match="no file"):
        broker.flip_byte("nothing/*", 0)


def test_what_nobody_catches_is_raised(broker: InProcessBroker) -> None:
    async def raises_later() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)

    with pytest.raises(EscapedError, match="ZeroDivisionError"):
        broker.run(raises_later())
    with pytest.raises(TimeoutError, match="waits for the clock"):
        broker.run(asyncio.Event().wait())


def test_one_clock_at_a_time() -> None:
    with InProcessBroker(), pytest.raises(RuntimeError, match="replaced already"), ManualClock().in_place():
        pass
    assert abs(clock.now_ms() - time.time() * 1000) < 3_600_000


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate())
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        folder = broker.folder
        for _ in range(20):
            broker.send("orders", b"x" * 100_000)
        broker.restart()
        broker.crash()
        assert broker.store.max_offset > 1 << 20
    assert not folder.exists()
    assert set(threading.enumerate()) <= before
    with contextlib.suppress(ZeroDivisionError), InProcessBroker() as broker:
        folder = broker.folder
        _ = 1 // 0
    assert not folder.exists()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("last_first", [False, True])
def test_a_crash_leaves_what_stood_there_at_one_instant(broker: InProcessBroker, last_first: bool) -> None:
    """A thread of the broker gives files their final names, in order, while they are copied."""
    written = broker.root / "written"
    written.mkdir()
    order = sorted(range(rounds(500, 1500)), reverse=last_first)
    for n in order:
        (written / f"{n}.tmp").touch()
    image = broker.root.with_name(broker.root.name + ".kept") / "written"
    begun = threading.Event()

    def rename() -> None:
        while not image.exists() and not begun.is_set():
            time.sleep(0.0001)
        with contextlib.suppress(FileNotFoundError):  # the broker is gone
            for n in order:
                (written / f"{n}.tmp").rename(written / f"{n}")

    thread = threading.Thread(target=rename)
    thread.start()
    try:
        broker.crash()
    finally:
        begun.set()
        thread.join()
    renamed = [(written / f"{n}").exists() for n in order]
    assert [(written / f"{n}.tmp").exists() for n in order] == [not each for each in renamed]
    assert renamed == sorted(renamed, reverse=True), "a later change is there and an earlier one is not"


def test_a_start_that_fails_can_be_tested() -> None:
    with InProcessBroker() as broker:
        with pytest.raises(StoreDamagedError, match="belongs to broker"):
            broker.restart(brokerName="another")
        broker.options["brokerName"] = "broker-a"


def test_the_example_of_the_package() -> None:
    _, _, example = (lakebroker_testing.__doc__ or "").partition("\n\n")
    code = textwrap.dedent(example.partition("\n\n|")[0])
    names: dict[str, Any] = {}
    exec(code, names)
    names["test_an_unacknowledged_message_comes_again"]()


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "testing-your-code.md").read_text(encoding="utf-8")
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "InProcess" in part]
    names: dict[str, Any] = {}
    exec(code, names)
    names["test_a_message_comes_again_until_it_is_acknowledged"]()
