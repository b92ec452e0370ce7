"""Drives the official RocketMQ Python client by lines of JSON. Run by an interpreter of its own,
which has the client's packages and can be killed.

Reads one command a line, `{"do": NAME, ...}`, and answers one line, `{"ok": true, ...}` or
`{"ok": false, "error": TEXT}`.

| command | arguments | answer |
|---|---|---|
| `producer` | endpoints, topics | |
| `send` | topic, bodies, tag, keys (one for each body), properties, message_group, priority | ids |
| `simple` | endpoints, group, topics: {topic: expression}, await_s, kind: TAG or SQL | |
| `receive` | max, invisible_s | messages |
| `ack` | ids | errors |
| `invisible` | id, seconds | |
| `push` | endpoints, group, topics, fail: {key: times to fail}, threads | |
| `consumed` | | messages consumed by the push consumer, in order |
| `stop` | | |
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from rocketmq.grpc_protocol import FilterType


def configuration(endpoints: str) -> ClientConfiguration:
    """Its calls may take a minute, not 3 s: a busy machine answers late, and the client does not know then whether it was done."""
    return ClientConfiguration(endpoints, Credentials(), request_timeout=60)


def subscriptions(topics: dict[str, str], kind: str = "TAG") -> dict[str, FilterExpression]:
    return {topic: FilterExpression(text, FilterType.Value(kind)) for topic, text in topics.items()}


def described(message: Message) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "topic": message.topic,
        "tag": message.tag,
        "keys": list(message.keys or []),
        "properties": dict(message.properties or {}),
        "body": message.body.decode("utf-8", "replace"),
        "attempt": message.delivery_attempt,
        "priority": message.priority,
        "corrupted": bool(message.corrupted),
    }


class Recorder(MessageListener):
    """Notes what it gets; fails a message as often as `fail` says for one of its keys."""

    def __init__(self, fail: dict[str, int]) -> None:
        self.fail = fail
        self.seen: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        entry = described(message)
        with self.lock:
            entry["failed"] = False
            for key in entry["keys"]:
                if self.fail.get(key, 0) > 0:
                    self.fail[key] -= 1
                    entry["failed"] = True
            self.seen.append(entry)
        return ConsumeResult.FAILURE if entry["failed"] else ConsumeResult.SUCCESS


class Driver:
    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.producer: Any = None
        self.simple: Any = None
        self.recorder: Recorder | None = None
        self.received: dict[str, Message] = {}

    def do_producer(self, endpoints: str, topics: list[str]) -> dict[str, Any]:
        self.producer = Producer(configuration(endpoints), topics)
        self.producer.startup()
        self.clients.append(self.producer)
        return {}

    def do_send(
        self,
        topic: str,
        bodies: list[str],
        tag: str | None = None,
        keys: list[str] | None = None,
        properties: dict[str, str] | None = None,
        message_group: str | None = None,
        priority: int | None = None,
    ) -> dict[str, Any]:
        ids = []
        for number, body in enumerate(bodies):
            message = Message()
            message.topic = topic
            message.body = body.encode()
            if tag:
                message.tag = tag
            if message_group:
                message.message_group = message_group
            if priority is not None:
                message.priority = priority
            if keys:
                message.keys = keys[number]
            for name, value in (properties or {}).items():
                message.add_property(name, value)
            ids.append(self.producer.send(message).message_id)
        return {"ids": ids}

    def do_simple(
        self, endpoints: str, group: str, topics: dict[str, str], await_s: int = 5, kind: str = "TAG"
    ) -> dict[str, Any]:
        self.simple = SimpleConsumer(
            configuration(endpoints), group, subscriptions(topics, kind), await_duration=await_s
        )
        self.simple.startup()
        self.clients.append(self.simple)
        return {}

    def do_receive(self, max: int = 32, invisible_s: int = 10) -> dict[str, Any]:
        messages = self.simple.receive(max, invisible_s) or []
        self.received.update({message.message_id: message for message in messages})
        return {"messages": [described(message) for message in messages]}

    def do_ack(self, ids: list[str]) -> dict[str, Any]:
        errors = {}
        for message_id in ids:
            try:
                self.simple.ack(self.received[message_id])
            except Exception as error:
                errors[message_id] = str(error)
        return {"errors": errors}

    def do_invisible(self, id: str, seconds: int) -> dict[str, Any]:
        self.simple.change_invisible_duration(self.received[id], seconds)
        return {}

    def do_push(
        self,
        endpoints: str,
        group: str,
        topics: dict[str, str],
        fail: dict[str, int] | None = None,
        threads: int = 4,
    ) -> dict[str, Any]:
        self.recorder = Recorder(fail or {})
        consumer = PushConsumer(
            configuration(endpoints),
            group,
            self.recorder,
            subscriptions(topics),
            consumption_thread_count=threads,
        )
        consumer.startup()
        self.clients.append(consumer)
        return {}

    def do_consumed(self) -> dict[str, Any]:
        assert self.recorder is not None
        with self.recorder.lock:
            return {"messages": list(self.recorder.seen)}

    def do_stop(self) -> dict[str, Any]:
        for client in reversed(self.clients):
            client.shutdown()
        self.clients.clear()
        return {}


def said(error: BaseException) -> str:
    """With what it happened at: the client's own cleaning up may fail, and hide why it was needed."""
    text = f"{type(error).__name__}: {error}"
    return text if error.__context__ is None else f"{text}; at {said(error.__context__)}"


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # nothing the client prints may get between the answers
    driver = Driver()
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            answer = {"ok": True, **getattr(driver, f"do_{name}")(**command)}
        except Exception as error:
            answer = {"ok": False, "error": said(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
