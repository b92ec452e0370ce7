"""Erasures among sends, delayed messages, transactions, receives, dead letters and crashes: what is erased never comes, all else does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.messaging.erasing import Asked
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from tests.suite.evidence import seeds

STEPS = 120
KEYS = "abcdef"


class Run:
    """One sequence of steps. A body begins with its key."""

    def __init__(self, broker: InProcessBroker, seed: int) -> None:
        self.broker = broker
        self.dice = random.Random(seed)
        self.number = 0
        self.due: set[bytes] = set()
        """To be received some time, unless it was already or is erased."""
        self.halves: dict[str, bytes] = {}
        self.erased: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.held: list[pb.Message] = []

    def body(self) -> tuple[str, bytes]:
        self.number += 1
        key = self.dice.choice(KEYS)
        return key, f"{key}{self.number}".encode()

    def send(self) -> None:
        key, body = self.body()
        later = self.dice.random() < 0.4
        more = {}
        if later:
            due = timestamp(self.broker.clock.now_ms + self.dice.randrange(1, 60_000))
            more = {"message_type": pb.DELAY, "delivery_timestamp": due}
        assert self.broker.send("t", body, keys=[key, "all"], **more).status.code == pb.OK
        self.due.add(body)

    def half(self) -> None:
        key, body = self.body()
        answer = self.broker.send("t", body, keys=[key], message_type=pb.TRANSACTION)
        assert answer.status.code == pb.OK
        self.halves[answer.entries[0].transaction_id] = body

    def end(self) -> None:
        if not self.halves:
            return
        transaction = self.dice.choice(list(self.halves))
        body = self.halves.pop(transaction)
        commits = self.dice.random() < 0.7
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name="t"),
            message_id=transaction,
            transaction_id=transaction,
            resolution=pb.COMMIT if commits else pb.ROLLBACK,
        )
        code = self.broker.call("EndTransaction", request).status.code
        assert code == (pb.INVALID_TRANSACTION_ID if body in self.erased else pb.OK)
        if commits:
            self.due.add(body)

    def receive(self) -> None:
        messages = self.broker.receive("t", "g", batch=self.dice.randrange(1, 9), invisible_ms=20_000)[1]
        self.took(messages)
        self.held += messages
        self.dice.shuffle(self.held)
        done = [self.held.pop() for _ in range(self.dice.randrange(len(self.held) + 1))]
        if done:
            self.broker.ack("t", "g", *done)

    def took(self, messages: list[pb.Message]) -> None:
        bodies = {each.body for each in messages}
        assert not bodies & self.erased
        self.seen |= bodies

    def dead_letter(self) -> None:
        if self.held:
            message = self.held.pop()
            self.broker.dead_letter("t", "g", message)

    def erase(self) -> None:
        key = self.dice.choice(KEYS)
        sent = self.due | self.seen | set(self.halves.values())
        self.broker.run(self.broker.broker.parts.erasing.erase(Asked("t", [key])))
        self.erased |= {body for body in sent if body.startswith(key.encode())}

    def start_again(self) -> None:
        if self.dice.random() < 0.5:
            self.broker.crash()
        else:
            self.broker.restart()

    def wait(self) -> None:
        self.broker.advance(self.dice.randrange(1, 30))

    def drain(self, topic: str, group: str) -> None:
        for _ in range(20):  # longer than all delays of retries together
            self.broker.jump(300)
            self.broker.advance(1)
            while messages := self.broker.receive(topic, group)[1]:
                self.took(messages)
                self.broker.ack(topic, group, *messages)
        assert self.broker.committed(topic, group) == self.broker.store.index.max_offset(topic, 0)


@pytest.mark.parametrize("seed", seeds(1, 30))
def test_what_is_erased_never_comes_and_all_else_does(tmp_path: Path, seed: int) -> None:
    with InProcessBroker(tmp_path, lakeJournalSnapshotBytes="65536") as broker:
        broker.create_topic("t")
        broker.create_group("g", 16)
        broker.receive("t", "g")
        run = Run(broker, seed)
        steps = [run.send] * 8 + [run.half, run.end] * 2 + [run.receive] * 5
        steps += [run.dead_letter, run.erase, run.start_again, run.wait]
        for _ in range(STEPS):
            run.dice.choice(steps)()
        run.drain("t", "g")
        if broker.store.index.max_offset("%DLQ%g", 0):
            broker.create_group("operators")
            broker.reset("%DLQ%g", "operators", 0, 0)
            run.drain("%DLQ%g", "operators")
        assert run.erased
        assert run.seen >= run.due - run.erased
        done = broker.run(broker.broker.parts.erasing.erase(Asked("t", list(KEYS))))
        assert {each.physical_offset for each in done.found} >= set(broker.store.erased.offsets.tolist())
        assert broker.broker.parts.timers.count == 0
        assert broker.broker.parts.timers.bytes == 0
