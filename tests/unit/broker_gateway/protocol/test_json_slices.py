"""Large texts read piece by piece: what they give, what is refused, and that others run meanwhile."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from broker_gateway.protocol import java_json, json_slices
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.errors import BodyError
from tests.suite.evidence import seeds


def some_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(10 if depth < 6 else 7)
    if kind < 3:
        return chance.choice([0, -7, 2**70, 1.5, -2e300, True, False, None])
    if kind < 7:
        return "".join(chance.choice('a"\\,{}[]: \n\u00e9\U0001f600') for _ in range(chance.randrange(12)))
    if kind < 8:
        return [some_value(chance, depth + 1) for _ in range(chance.randrange(12))]
    return {str(some_value(chance, 6)): some_value(chance, depth + 1) for _ in range(chance.randrange(12))}


def written(chance: random.Random, value: Any) -> str:
    indent = chance.choice([None, None, 0, 3])
    return json.dumps(value, indent=indent, ensure_ascii=chance.random() < 0.5)


def outcome(read: Any, text: str) -> Any:
    try:
        return read(text)
    except ValueError:
        return ValueError


@pytest.mark.parametrize("seed", seeds(2, 6))
@pytest.mark.parametrize("window", [24, 100, 1000])
def test_the_same_values_as_pythons_reader(monkeypatch: pytest.MonkeyPatch, seed: int, window: int) -> None:
    monkeypatch.setattr(json_slices, "WINDOW", window)
    chance = random.Random(seed)
    for _ in range(150):
        text = written(chance, some_value(chance))
        assert json_slices.read(text) == json.loads(text)
        changed = list(text)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.choice('",:{}[]\\ 1x')
        # where a key is bare by the change, Python's reader refuses the text
        broken = "".join(changed)
        expected = outcome(json.loads, broken)
        if expected is not ValueError:
            assert json_slices.read(broken) == expected
        elif not re.search(r"[{,]\s*[\w$-]+\s*:", broken):
            assert outcome(json_slices.read, broken) is ValueError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:"h:1",-3:[{a:1,"b" : {7:8} }]}', {"0": "h:1", "-3": [{"a": 1, "b": {"7": 8}}]}),
        ('{ $x_1 : "{0:1,", "y":",2:3" }', {"$x_1": "{0:1,", "y": ",2:3"}),
    ],
)
def test_bare_keys(monkeypatch: pytest.MonkeyPatch, text: str, expected: Any) -> None:
    monkeypatch.setattr(json_slices, "WINDOW", 20)
    assert json_slices.read(text) == java_json.loads(text.encode()) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1", "[1,]", '{"a":1,}', "[1 2]", '{"a" 1}', "{1.5:1}", "[NaN]", "1 2", "[-]"]
)
def test_what_is_no_json(text: str) -> None:
    assert outcome(json_slices.read, text) is ValueError
    with pytest.raises(BodyError):
        java_json.loads((" " * json_slices.WINDOW + text).encode())


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "MAX_BARE_KEYS", 3)
    large = " " * json_slices.WINDOW
    assert java_json.loads(b"{a:1,b:2,c:3" + large.encode() + b"}") == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(BodyError, match="more than 3 keys without quotes"):
        java_json.loads(b"{a:1,b:2,c:3,d:4" + large.encode() + b"}")
    deep = json_slices.MAX_DEPTH
    assert json_slices.read("[" * deep + large + "]" * deep)
    with pytest.raises(ValueError, match="nested more than 12 deep at character 12"):
        json_slices.read("[" * (deep + 1) + large + "]" * (deep + 1))
    with pytest.raises(BodyError):
        java_json.loads(b"[" * 1_000_000)


TEXTS: dict[str, Callable[[], bytes]] = {
    "topics": lambda: RegisterBrokerBody(
        DataVersion(), {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(2_000)}
    ).encode(compress=False),
    "numbers": lambda: b"[" + b"1," * 100_000 + b"1]",
    "bare keys": lambda: b"{" + b",".join(b"a%d:1" % number for number in range(30_000)) + b"}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_no_step_reads_more_than_a_window(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A step is what keeps the interpreter to itself; between two others run."""
    monkeypatch.setattr(json_slices, "WINDOW", 1 << 10)
    body = TEXTS[name]()
    scan, steps, window = json_slices._scan, [], json_slices.WINDOW

    def counted(text: str, at: int) -> tuple[Any, int]:
        try:
            value, end = scan(text, at)
        except (StopIteration, json.JSONDecodeError):
            steps.append(min(len(text) - at, window))
            raise
        steps.append(end - at)
        return value, end

    monkeypatch.setattr(json_slices, "_scan", counted)
    java_json.loads(body)
    assert max(steps) <= window + len("[]")
    assert len(steps) > len(body) // window // 2
