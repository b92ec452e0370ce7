"""Stores that earlier lakebrokers wrote: this one goes on with them in place, and the earlier one again after it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_gateway.api.grpc.codec import timestamp
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import PATIENT, Gateway, ProcessError
from tests.suite.evidence import LONG
from tests.support.brokers.earlier_versions import (
    BEFORE_ERASURES,
    BEFORE_FOLDERS,
    LATER,
    LATER_OPTIONS,
    OPTIONS,
    ORDERED,
    PAID,
    TOPIC,
    Expected,
    earlier,
    later_options,
    unpacked,
)
from tests.support.waiting import wait_until

BOTH = pytest.mark.parametrize("commit", [BEFORE_FOLDERS, BEFORE_ERASURES], ids=lambda commit: commit[:7])


def today(folder: Path) -> Gateway:
    return Gateway(folder, **OPTIONS, **LATER_OPTIONS)


def before(commit: str, folder: Path) -> Gateway:
    return earlier(commit, folder, **PATIENT, **later_options(commit))


def receive_all(client: Client, topic: str, group: str, count: int) -> dict[str, int]:
    """Attempts of so many messages by their bodies, and of those that come right behind them; all are acknowledged."""
    found: dict[str, int] = {}

    def nothing_more_comes() -> bool:
        _, messages = client.receive(topic, group, invisible_ms=60_000)
        if messages:
            assert client.ack(topic, group, *messages).status.code == pb.OK
        for each in messages:
            body = each.body.decode()
            assert body not in found, "acknowledged, and given out again"
            found[body] = each.system_properties.delivery_attempt
        return len(found) >= count and not messages

    wait_until(nothing_more_comes, lambda: f"{count} messages, after {found},")
    return found


def check_usual(client: Client, expected: Expected) -> None:
    """What `billing` has before it, from which attempt on; and what `audit` gave up."""
    left = dict.fromkeys(expected.in_flight, 2) | dict.fromkeys(expected.not_received, 1)
    assert receive_all(client, TOPIC, "billing", len(left)) == left
    assert receive_all(client, "%DLQ%audit", "undertaker", 1) == dict.fromkeys(expected.dead, 1)
    every = {*expected.acked, *expected.in_flight, *expected.not_received}
    assert receive_all(client, TOPIC, "audit", 11).keys() == every - set(expected.dead)


def check_put_off(client: Client, expected: Expected) -> None:
    """What was due since came; what is due later, and what has not ended, is still known."""
    assert receive_all(client, LATER, "billing", len(expected.due)).keys() == set(expected.due)
    assert list(receive_all(client, ORDERED, "books", len(expected.ordered))) == expected.ordered
    recall = rpc.RecallMessageRequest(topic=pb.Resource(name=LATER), recall_handle=expected.recall_handle)
    assert client.call("RecallMessage", recall).status.code == pb.OK
    ended = rpc.EndTransactionRequest(
        topic=pb.Resource(name=PAID), resolution=pb.TransactionResolution.COMMIT, **expected.half
    )
    assert client.call("EndTransaction", ended).status.code == pb.OK
    assert receive_all(client, PAID, "billing", 1) == {"half": 1}


@BOTH
def test_a_store_is_upgraded_in_place(commit: str, tmp_path: Path) -> None:
    expected = unpacked(commit, tmp_path)
    with today(tmp_path) as gateway:
        client = Client(gateway.address)
        check_usual(client, expected)
        if expected.due:
            check_put_off(client, expected)
        assert client.send(TOPIC, b"new").status.code == pb.OK
        assert receive_all(client, TOPIC, "billing", 1) == {"new": 1}
        client.close()
        assert gateway.terminate() == 0


@LONG  # which builds a wheel from the repository's history; the journal as an earlier one reads it: `journal/test_earlier_readers.py`
@BOTH
def test_the_earlier_one_starts_again_after_an_upgrade(commit: str, tmp_path: Path) -> None:
    expected = unpacked(commit, tmp_path)
    with today(tmp_path) as gateway:
        client = Client(gateway.address)
        _, taken = client.receive(TOPIC, "billing", batch=1, invisible_ms=60_000)
        assert client.ack(TOPIC, "billing", *taken).status.code == pb.OK
        acked = taken[0].body.decode()
        for body in ("during-1", "during-2"):
            assert client.send(TOPIC, body.encode(), keys=["during"]).status.code == pb.OK
        put_off = client.send(
            LATER,
            b"put off",
            message_type=pb.DELAY,
            delivery_timestamp=timestamp(time.time_ns() // 1_000_000 + 600_000),
        )
        assert put_off.status.code == pb.OK
        client.close()
        assert gateway.terminate() == 0
    now = expected._replace(
        acked=[*expected.acked, acked],
        in_flight=[each for each in expected.in_flight if each != acked],
        not_received=[
            *(each for each in expected.not_received if each != acked),
            "during-1",
            "during-2",
        ],
    )
    with before(commit, tmp_path) as gateway:
        client = Client(gateway.address)
        check_usual(client, now)
        if expected.due:
            check_put_off(client, now)
        client.close()
        assert gateway.terminate() == 0
    with today(tmp_path) as gateway:  # and forward once more
        client = Client(gateway.address)
        assert receive_all(client, TOPIC, "billing", 0) == {}
        handle = put_off.entries[0].recall_handle
        recall = rpc.RecallMessageRequest(topic=pb.Resource(name=LATER), recall_handle=handle)
        assert client.call("RecallMessage", recall).status.code == pb.OK, (
            "the log has what one knew nothing of"
        )
        client.close()
        assert gateway.terminate() == 0


@LONG  # the versions of today's records: `journal/test_earlier_readers.py`
def test_an_earlier_one_refuses_a_journal_with_erasures_by_name(tmp_path: Path) -> None:
    unpacked(BEFORE_ERASURES, tmp_path)
    with today(tmp_path) as gateway:
        client = Client(gateway.address)
        assert client.erase(TOPIC, keys=["key-3"]).new_records == 1
        client.close()
        assert gateway.terminate() == 0
    with pytest.raises(ProcessError, match=r"has version 3.*start the version that wrote it or a later one"):
        before(BEFORE_ERASURES, tmp_path).start()
