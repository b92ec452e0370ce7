"""Delayed messages, a recall, and transactions with the official Python client; prints a line for each thing that it saw.

Run by the interpreter that has the client.
"""

from __future__ import annotations

import os
import sys
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

SOON_MS = 20_000
"""Far enough that a busy machine has sent and recalled all before."""


class Checker(TransactionChecker):
    """On a busy machine a half is asked about that is ended a moment later: it is left to that."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def check(self, message: Message) -> TransactionResolution:
        body = message.body.decode()
        if not body.startswith("asked-"):
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        self.asked.add(body)
        return TransactionResolution.COMMIT if body == "asked-commit" else TransactionResolution.ROLLBACK


def new_message(topic: str, body: str) -> Message:
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, body.encode(), "red", "k"
    message.add_property("colour", "blue")
    return message


def described(each: Message) -> str:
    keys = ",".join(each.keys)
    return f"{each.body.decode()} {each.tag} {keys} {each.properties['colour']} {each.delivery_attempt}"


def taken(consumer: SimpleConsumer) -> list[Message]:
    """What a receive answers; nothing, from a real proxy that has not the client's settings yet: the client does not wait
    until they are taken."""
    try:
        return consumer.receive(16, 300) or []
    except Exception as error:
        if '"settings" is null' not in str(error):
            raise
        time.sleep(0.2)
        return []


def configuration(endpoints: str) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials(), request_timeout=60)


def received(endpoints: str, topic: str, count: int) -> list[Message]:
    consumer = SimpleConsumer(
        configuration(endpoints), f"{topic}-readers", {topic: FilterExpression()}, await_duration=5
    )
    consumer.startup()
    found: list[Message] = []
    end = 0.0
    while not end or time.monotonic() < end:
        for each in taken(consumer):
            found.append(each)
            consumer.ack(each)
        if len(found) >= count and not end:
            end = time.monotonic() + 4
    consumer.shutdown()
    return found


def main(endpoints: str, delayed: str, paid: str) -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # nothing the client prints may get between the lines

    def tell(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    checker = Checker()
    producer = Producer(configuration(endpoints), (delayed, paid), checker=checker)
    producer.startup()
    for end in ("commit", "rollback", "asked-commit", "asked-rollback"):
        transaction = producer.begin_transaction()
        producer.send(new_message(paid, end), transaction)
        if end == "commit":
            transaction.commit()
        elif end == "rollback":
            transaction.rollback()
    due, now = {}, time.time()
    for wait_ms in (SOON_MS + 6500, SOON_MS + 4500, SOON_MS + 5500):
        message = new_message(delayed, str(wait_ms))
        at_s = int(now + wait_ms / 1000)  # the client takes whole seconds
        message.delivery_timestamp = at_s
        due[str(wait_ms)] = 1000 * at_s
        producer.send(message)
    message = new_message(delayed, "recalled")
    message.delivery_timestamp = int(now + SOON_MS / 1000) + 15
    handle = producer.send(message).recall_handle
    tell("recalled true" if producer.recall_message(delayed, handle) else "recalled false")
    for each in received(endpoints, delayed, 3):
        tell(f"delayed {described(each)} {each.delivery_timestamp - due[each.body.decode()]}")
    for line in sorted(described(each) for each in received(endpoints, paid, 2)):
        tell(f"committed {line}")
    while len(checker.asked) < 2:
        time.sleep(0.1)
    for body in sorted(checker.asked):
        tell(f"asked {body}")


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # its threads go on
