"""Delayed messages and transactions beside the real proxy: over plain gRPC, with official clients, and in the log.

What differs on purpose stands here with both answers, and in docs/differences.md with the reason.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.deferred.halves import HALF_TOPIC, OP_TOPIC
from broker_gateway.deferred.put_off import DELIVER_MS, OUT_MS, RECALL_KEY, TIMER_TOPIC, out_ms
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.real_rocketmq import RocketMQ
from store.errors import RecordError
from store.log.record import PROPERTY_CRC32, Record, decode_record
from tests.support.rocketmq.foreign_clients import PUT_OFF
from tests.support.rocketmq.put_off_calls import (
    DELAYED,
    OPTIONS,
    PAID,
    TOPICS,
    Server,
    delays,
    recalls,
    transactions,
    wrong_input,
)
from tests.support.rocketmq.requests import create
from tests.support.waiting import LIMIT_S

Found = dict[str, Any]
LANGUAGES = sorted(PUT_OFF)
ALL_TOPICS = {
    **TOPICS,
    **{f"{DELAYED}-{language}": (1, "DELAY") for language in LANGUAGES},
    **{f"{PAID}-{language}": (1, "TRANSACTION") for language in LANGUAGES},
}


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, rocketmq: RocketMQ
) -> Iterator[dict[str, RocketMQ | Gateway]]:
    """The real one and ours, with the same topics."""
    create(rocketmq.broker_address, ALL_TOPICS, {f"{topic}-readers": {} for topic in ALL_TOPICS})
    folder, options = tmp_path_factory.mktemp("put-off"), {"lakeAutoCreateTopics": "false", **OPTIONS}
    with Gateway(folder, **options) as gateway:
        create(f"127.0.0.1:{gateway.remoting_port}", ALL_TOPICS)
        yield {"theirs": rocketmq, "ours": gateway}


@pytest.fixture(scope="module")
def found(running: dict[str, RocketMQ | Gateway]) -> dict[str, Found]:
    """By server, what each script found, and the records that it left."""
    with ThreadPoolExecutor() as threads:
        answers = {name: threads.submit(asked, server) for name, server in running.items()}
    return {
        name: {**answers[name].result(), "records": list(records(server.store))}
        for name, server in running.items()
    }


SCRIPTS: tuple[Callable[[Server], Found], ...] = (delays, recalls, transactions, wrong_input)


def asked(running: RocketMQ | Gateway) -> Found:
    server = Server(running.address)
    try:
        return {script.__name__: script(server) for script in SCRIPTS}
    finally:
        server.close()


def records(store: Path) -> Iterator[Record]:
    """Of a store whose broker runs: those that are in the file by now."""
    for file in sorted((store / "commitlog").iterdir()):
        data = file.read_bytes()
        at = 0
        while int.from_bytes(data[at : at + 4], "big"):
            try:
                record = decode_record(data, at, int(file.name) + at)
            except RecordError:
                break
            yield record
            at += record.size


def different(found: dict[str, Found], of: Callable[[Found], Found]) -> Found:
    """What is answered otherwise: theirs, and ours."""
    theirs, ours = of(found["theirs"]), of(found["ours"])
    assert theirs.keys() == ours.keys()
    return {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}


def test_delayed_messages_are_answered_and_delivered_as_there(found: dict[str, Found]) -> None:
    assert found["ours"]["delays"]["order"] == [b"1001", b"2500", b"4000", b"second"]
    assert different(found, lambda each: dict(each["delays"])) == {}


INTERNAL = "INTERNAL_SERVER_ERROR"


def test_recalls(found: dict[str, Found]) -> None:
    nothing = (INTERNAL, "BAD_REQUEST")
    assert different(found, lambda each: dict(each["recalls"]["answers"])) == {
        "another topic": nothing,
        "another broker": nothing,
        "another version": nothing,
        "a past time": nothing,
        "a time too far away": nothing,
        "empty": nothing,
        "no base64": nothing,
        "no time": nothing,
        "too late": nothing,
        "another message": ("OK", "BAD_REQUEST"),  # it is not looked up there
        "another time": ("OK", "BAD_REQUEST"),
        "twice": ("OK", "BAD_REQUEST"),
        "a missing topic": ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "TOPIC_NOT_FOUND"),
    }
    for each in found.values():
        assert each["recalls"]["received"] == [b"kept"]


def test_transactions(found: dict[str, Found]) -> None:
    unknown = (INTERNAL, "INVALID_TRANSACTION_ID")
    assert different(found, lambda each: dict(each["transactions"])) == {
        "commit twice": (INTERNAL, "OK"),
        "commit, then rollback": unknown,
        "rollback, then commit": unknown,
        "unknown id": unknown,
        "another topic": unknown,
        "a missing topic": unknown,
    }
    ours = found["ours"]["transactions"]
    assert [each["body"] for each in ours["received"]] == [b"committed", b"unknown, then commit"]
    assert len(ours["asked"]) == 2
    assert ours["ends of checks"] == ["OK"]


def test_wrong_input(found: dict[str, Found]) -> None:
    contradiction = ("OK", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE")
    assert different(found, lambda each: dict(each["wrong_input"])) == {
        "DELAY without a time, any type": contradiction,
        "DELAY with a message group": contradiction,
        "NORMAL with a time": contradiction,
        "FIFO with a time": contradiction,
        "TRANSACTION with a group": contradiction,
        "a time before 1970": ("OK", "ILLEGAL_DELIVERY_TIME"),
        "a time of too many seconds": (INTERNAL, "ILLEGAL_DELIVERY_TIME"),
        "recovery negative": ("OK", "BAD_REQUEST"),
        "DELAY to a missing topic": ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "TOPIC_NOT_FOUND"),
        "DELAY and NORMAL in a call": (INTERNAL, "MESSAGE_CORRUPTED"),
        "TRANSACTION and NORMAL in a call": (INTERNAL, "MESSAGE_CORRUPTED"),
        "two halves in a call": (INTERNAL, "OK"),
        "two DELAY messages in a call": (INTERNAL, "OK"),
    }


_TIMES = frozenset(("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "BORN_TIMESTAMP"))
_OTHERS = frozenset((PROPERTY_CRC32, "LB_ORIGIN", "__BORNHOST"))
"""Properties that only ours have, and one that only theirs have: docs/differences.md."""


def shown(record: Record, halves: dict[int, bytes]) -> Found:
    """A record without its place and times."""
    properties = record.properties_map()
    told = {name: value for name, value in properties.items() if value and name not in _OTHERS}
    for name in _TIMES & told.keys():
        told[name] = "a time"
    if OUT_MS in told:
        told[OUT_MS] = "earlier" if int(told[OUT_MS]) == out_ms(int(told[DELIVER_MS])) else told[OUT_MS]
    told.pop(DELIVER_MS, None)  # `delays` compares it with the one that was sent
    return {
        "queue": record.queue_id,
        "flags": (record.flag, record.sys_flag, record.reconsume_times),
        "half": halves.get(record.prepared_transaction_offset) if properties.get("TRAN_MSG") else None,
        "properties": told,
    }


def of_bodies(found: Found, topic: str, *bodies: bytes) -> list[tuple[bytes, Found]]:
    """The first record of each body in a topic; not those of halves that were asked about, which differ in number."""
    halves = {each.physical_offset: bytes(each.body) for each in found["records"] if each.topic == HALF_TOPIC}
    first: dict[bytes, Found] = {}
    for each in found["records"]:
        if each.topic == topic and bytes(each.body) in bodies and RECALL_KEY not in each.properties_map():
            first.setdefault(bytes(each.body), shown(each, halves))
    return sorted(first.items())


@pytest.mark.parametrize(
    ("topic", "bodies"),
    [
        (TIMER_TOPIC, [b"1001", b"2500", b"second", b"taken"]),
        (DELAYED, [b"1001", b"second", b"past", b"kept"]),
        (HALF_TOPIC, [b"committed", b"rolled back", b"unknown, then rollback"]),
        (PAID, [b"committed", b"unknown, then commit"]),
    ],
)
def test_records_in_the_log(found: dict[str, Found], topic: str, bodies: list[bytes]) -> None:
    theirs = of_bodies(found["theirs"], topic, *bodies)
    assert [body for body, _ in theirs] == sorted(bodies)
    assert of_bodies(found["ours"], topic, *bodies) == theirs


def test_records_that_recall(found: dict[str, Found]) -> None:
    """There is one there of each recall that finds nothing, too."""

    def recalls_of(each: Found) -> list[Found]:
        return [shown(record, {}) for record in each["records"] if RECALL_KEY in record.properties_map()]

    assert recalls_of(found["ours"]) == recalls_of(found["theirs"])[:1]


def test_records_that_end_halves(found: dict[str, Found]) -> None:
    """There one says of many that they are done with, some seconds later."""

    def ends_of(each: Found) -> tuple[set[str], set[int]]:
        known: set[str] = set()
        for record in each["records"]:
            if record.topic == OP_TOPIC:
                known.add(str(sorted(shown(record, {})["properties"].items())))
                assert bytes(record.body).replace(b",", b"").isdigit()
        return known, {record.queue_id for record in each["records"] if record.topic == OP_TOPIC}

    assert ends_of(found["ours"]) == ends_of(found["theirs"])


@pytest.fixture(scope="module")
def told(
    running: dict[str, RocketMQ | Gateway], found: dict[str, Found], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, Future[list[str]]]]]:
    """By language and server, the lines of the official client's program. All run at once: they wait most of the time. `found` comes
    first: the servers have long started."""

    programs = {language: PUT_OFF[language]() for language in LANGUAGES}

    def lines(language: str, server: RocketMQ | Gateway) -> list[str]:
        home = tmp_path_factory.mktemp(language)
        done = subprocess.run(
            [*programs[language], server.address, f"{DELAYED}-{language}", f"{PAID}-{language}"],
            env={**os.environ, "HOME": str(home), "GODEBUG": "", "PYTHONPATH": ""},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        return done.stdout.splitlines()

    with ThreadPoolExecutor(len(LANGUAGES) * len(running)) as threads:
        yield {
            language: {name: threads.submit(lines, language, server) for name, server in running.items()}
            for language in LANGUAGES
        }


@pytest.mark.parametrize("language", LANGUAGES)
def test_official_clients_see_the_same(told: dict[str, dict[str, Future[list[str]]]], language: str) -> None:
    theirs, ours = (told[language][name].result() for name in ("theirs", "ours"))
    assert ours == [
        "recalled true",
        *(f"delayed {wait_ms} red k blue 1 0" for wait_ms in (24_500, 25_500, 26_500)),
        "committed asked-commit red k blue 1",
        "committed commit red k blue 1",
        "asked asked-commit",
        "asked asked-rollback",
    ]
    assert sorted(ours) == sorted(theirs)  # which take what is due from a slot of a second in any order
