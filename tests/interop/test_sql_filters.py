"""SQL filters read and answered as the broker's own: expressions that a grammar makes, and an official client's."""

from __future__ import annotations

import base64
import random
from pathlib import Path

from broker_gateway.delivery.filters.message_filter import FilterExpressionError
from broker_gateway.delivery.filters.sql92 import parse_sql_filter
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.official_client import OfficialClient, when_started
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.suite.evidence import EVIDENCE
from tests.support.rocketmq.requests import create, queue_end
from tests.support.waiting import wait_until

CASES = 20_000 if EVIDENCE else 4_000
NAMES = ("a", "b", "c_1", "$d", "TAGS", "gone")
TEXTS = (
    *(
        "",
        "x",
        "true",
        "TRUE",
        "false",
        "5",
        "-5",
        "+5",
        "05",
        " 5",
        "5 ",
        "5.0",
        "5.5",
        "1e3",
        "1d",
        "0x1p3",
        "NaN",
    ),
    *(
        "Infinity",
        "-0.0",
        "0",
        "2147483648",
        "9223372036854775808",
        "1_0",
        "٣",
        "it''s",
        "xx",
        "axb",
        "5L",
        "1e999",
    ),
)
NUMBERS = (
    "0",
    "1",
    "5",
    "5.5",
    "0.5",
    "1e3",
    "2147483647",
    "2147483648",
    "5L",
    "9223372036854775807",
    "-5",
    "- 5",
    "+5",
)
_OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


class Writer:
    """Writes expressions, most of which can be read."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def properties(self) -> dict[str, str]:
        return {name: self._random.choice(TEXTS) for name in NAMES[:-1] if self._random.random() < 0.8}

    def condition(self, depth: int = 3) -> str:
        kind = self._random.randrange(12) if depth else self._random.randrange(4, 12)
        if kind < 2:
            return self._random.choice((" AND ", " or ", " OR ")).join(
                self.condition(depth - 1) for _ in range(self._random.randint(2, 3))
            )
        if kind == 2:
            return f"({self.condition(depth - 1)})"
        if kind == 3:
            return f"NOT {self.condition(depth - 1)}"
        if kind == 4:
            return f"{self._name()} IS {self._random.choice(('', 'not '))}NULL"
        if kind == 5:
            values = ", ".join(self._text() for _ in range(self._random.randint(1, 7)))
            return f"{self._name()} {self._not()}IN ({values})"
        if kind == 6:
            search = self._random.choice(("CONTAINS", "StartsWith", "ENDSWITH"))
            return f"{self._operand()} {self._not()}{search} {self._text()}"
        if kind == 7:
            return f"{self._operand()} {self._not()}BETWEEN {self._operand()} AND {self._operand()}"
        if kind == 8:
            return self._random.choice(("TRUE", "false", "NULL", self._name()))
        return f"{self._operand()} {self._random.choice(_OPERATORS)} {self._operand()}"

    def _not(self) -> str:
        return self._random.choice(("", "", "NOT "))

    def _name(self) -> str:
        return self._random.choice(NAMES)

    def _text(self) -> str:
        return "'" + self._random.choice(TEXTS) + "'"

    def _operand(self) -> str:
        kind = self._random.randrange(12)
        if kind < 6:
            return self._name()
        if kind < 9:
            return self._random.choice(NUMBERS)
        if kind == 9:
            return self._text()
        if kind == 10:
            return self._random.choice(("TRUE", "FALSE", "NULL", f"-{self._name()}"))
        return f"({self.condition(0)})"


def encoded(text: str) -> str:
    """With a letter in front: no word is empty."""
    return "x" + base64.b64encode(text.encode()).decode()


def ours(expression: str, properties: dict[str, str]) -> str:
    try:
        return str(parse_sql_filter(expression).wants(properties)).lower()
    except FilterExpressionError:
        return "invalid"


def test_every_filter_is_answered_as_there(tmp_path: Path, rocketmq: RocketMQ) -> None:
    writer = Writer(1)
    cases = [(writer.condition(), writer.properties()) for _ in range(CASES)]
    file = tmp_path / "cases"
    lines = [
        " ".join(
            encoded(word) for word in (expression, *(each for pair in properties.items() for each in pair))
        )
        for expression, properties in cases
    ]
    file.write_text("\n".join(lines))
    answers = rocketmq.java(Path(__file__).with_name("SqlFilters.java"), str(file)).splitlines()
    assert len(answers) == len(cases)
    matches = {"true": "true", "invalid": "invalid"}
    unlike = [
        (expression, properties, theirs, found)
        for (expression, properties), theirs in zip(cases, answers, strict=True)
        if (found := ours(expression, properties)) != matches.get(theirs, "false")
    ]
    assert unlike == []
    for answer in ("true", "false", "null", "error", "invalid"):
        assert answers.count(answer) > CASES // 100, f"too few cases that are {answer}"


TOPIC = "filtered"
FILTERS = [
    "price > 10 AND region IN ('north', 'south')",
    "price BETWEEN 5 AND 15 OR region CONTAINS 'ort'",
    "region IS NULL",
    "NOT (price > 10)",
    "TAGS = 'a' AND KEYS STARTSWITH 'k'",
]


PRICES = ("4", "5", "11", "15", "16", "many", "10.5", "-1")


def received(address: str, remoting: str) -> list[list[str]]:
    """Bodies of what an official client gets by each filter, in a group each."""
    with OfficialClient() as official:
        when_started(official, "producer", endpoints=address, topics=[TOPIC])
        for number, price in enumerate(PRICES):
            properties = {"price": price} | (
                {"region": ("north", "south", "east")[number % 3]} if number % 4 else {}
            )
            sent = {
                "topic": TOPIC,
                "bodies": [str(number)],
                "tag": "ab"[number % 2],
                "keys": [f"k{number}"],
            }
            when_started(official, "send", **sent, properties=properties)
        wait_until(lambda: queue_end(remoting, TOPIC) == len(PRICES), "all messages in their queue")
        found = []
        for number, expression in enumerate(FILTERS):
            asked = {
                "group": f"{TOPIC}-{number}",
                "topics": {TOPIC: expression},
                "await_s": 3,
                "kind": "SQL",
            }
            official.call("simple", endpoints=address, **asked)
            found.append(sorted(first_bodies(official)))
        return found


def first_bodies(official: OfficialClient) -> list[str]:
    """Those of the first answer that has any: all messages are in the one queue, and fewer than an answer may have."""
    while not (messages := when_started(official, "receive", max=32, invisible_s=30)["messages"]):
        pass
    return [each["body"] for each in messages]


def test_an_official_client_gets_what_it_gets_of_the_real_proxy(tmp_path: Path, rocketmq: RocketMQ) -> None:
    made = {TOPIC: (1, "NORMAL")}, {f"{TOPIC}-{number}": {} for number in range(len(FILTERS))}
    create(rocketmq.broker_address, *made)
    theirs = received(rocketmq.address, rocketmq.broker_address)
    with Gateway(tmp_path / "gateway") as gateway:
        remoting = f"127.0.0.1:{gateway.remoting_port}"
        create(remoting, *made)
        assert received(gateway.address, remoting) == theirs
    assert all(0 < len(bodies) < 8 for bodies in theirs)
