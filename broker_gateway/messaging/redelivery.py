"""What becomes of messages whose invisible time is over: renewed, delivered again, or dead letters.

| the client of a message over its time | then |
|---|---|
| has it renewed by staying alive, for less than `RENEW_AT_MOST_MS` | it is renewed |
| had it renewed for so long | its handle is void, and the message waits as the group's retry policy says |
| is gone, or never had it renewed | it is delivered again, or a dead letter when the group's attempts are over |

A pass does so much of it (`_A_SWEEP`) and goes on in the next tick, so that others are served in between.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

from broker_gateway.delivery.handles import new_delivery_id
from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.lake_only import LakeMessage
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import subscribed_topic
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.dead_letters import DeadLetterMover
from broker_gateway.messaging.poll import RENEWED_MS
from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.group_configuration import policy
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.tick import Stage
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as events
from store.counting import counted
from store.errors import StoreError

RENEW_AT_MOST_MS = 3 * 3_600_000
"""No renewal beyond this after the delivery, as in the real proxy."""
_A_SWEEP = 512
"""Messages that a pass handles."""
_A_MOVE = 16
"""A dead letter counts as so many: it is read and appended."""
_A_WALK = 20_000
"""Messages in flight handled before others get a turn."""


class Redelivery:
    """Looks after due messages, whether anybody receives or not."""

    def __init__(self, core: Core, clients: ClientRegistry, mover: DeadLetterMover) -> None:
        self._catalog = core.catalog
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._clients = clients
        self._mover = mover
        self._wakeups = core.wakeups
        self._tick = core.tick
        self._goes_on = False

    def restarted(self, *, with_lake: bool) -> None:
        """The journal was replayed: clients that have their messages renewed get time to come back. With the lake, what a lost
        log had handed out and only the lake has is due."""
        now = now_ms()
        until = now + RENEWED_MS
        for state in self._deliveries.queues():
            if with_lake and state.lake_only.messages:
                state.deliver_from_lake([_handed_out(each, now) for each in state.lake_only.messages])
            for message in state.in_flight.values():
                if message.auto_renew and message.invisible_until_ms < until:
                    state.postpone(message, until)

    def sweep_due(self) -> None:
        """Handles what is due, in every queue, and wakes those who wait for it."""
        now, left = now_ms(), _A_SWEEP
        while left > 0 and (state := self._deliveries.pop_due(now)) is not None:
            try:
                left -= self._sweep(state, now, left)
            finally:
                self._deliveries.schedule(state)
            self._wakeups.due(subscribed_topic(state.key), state.key.group)
        due = self._deliveries.next_due_ms()
        if due is not None and due <= now and not self._goes_on:
            self._goes_on = True
            self._tick.add(Stage.WAKE, self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self.sweep_due()

    def _sweep(self, state: QueueDelivery, now: int, most: int) -> int:
        """Handles due messages of one queue; returns how many that counts as."""
        group = self._catalog.group(state.key.group) or Group(state.key.group)
        done = 1
        while done < most and (message := state.due(now)) is not None:
            done += self._handle(state, message, group, now)
        return done

    def _handle(self, state: QueueDelivery, message: InFlight, group: Group, now: int) -> int:
        if message.auto_renew and self._clients.alive(message.client_id, message.host):
            if now - message.delivered_ms < RENEW_AT_MOST_MS:
                state.postpone(message, now + RENEWED_MS)
            else:
                self._give_back(state, message, group, now)
        elif message.attempt >= group.max_attempts:
            # a changed invisible time may be longer or end the attempt: which it was is not known here
            attempts = counted(message.attempt, "delivery attempt")
            reason = f"not acknowledged after {attempts}: the time was over, or the consumer gave it back"
            wait_ms = self._mover.move(state, message, reason)
            if wait_ms is not None:
                state.withhold(message, now + wait_ms, new_delivery_id())
            return _A_MOVE
        else:
            state.wake(message, now)
        return 1

    def _give_back(self, state: QueueDelivery, message: InFlight, group: Group, now: int) -> None:
        """As if its client had given it back: it waits as the group's retry policy says."""
        changed = replace(
            message,
            invisible_until_ms=now + policy(group).wait_ms(message.attempt),
            delivery_id=new_delivery_id(),
            auto_renew=False,
            nacked=True,
            attempt_id="",
            status=Status.INVISIBLE,
        )
        # what is not journaled now is said by the next record that can be appended
        with contextlib.suppress(StoreError, OSError):
            self._changes.events(
                state,
                events.NACKED,
                [changed],
                client_id=message.client_id,
                delivery_id=changed.delivery_id,
                invisible_until_ms=changed.invisible_until_ms,
                timestamp_ms=now,
            )
        state.replace(message, changed)

    def release(self, client_id: str, group: str) -> None:
        """Ends the renewal of a client that left: its messages are due now. Those of its id that live keep theirs."""
        self._release(client_id, self._deliveries.keys_of_group(group))

    def _release(self, client_id: str, keys: list[QueueKey]) -> None:
        now, left = now_ms(), _A_WALK
        while keys and left > 0:
            state = self._deliveries.known(keys.pop())
            if state is None:
                continue
            left -= 1 + len(state.in_flight)
            for message in list(state.in_flight.values()):
                if (
                    message.auto_renew
                    and message.client_id == client_id
                    and not self._clients.alive(client_id, message.host)
                ):
                    message.auto_renew = False
                    if message.status == Status.INVISIBLE:
                        state.postpone(message, now)
        if keys:
            self._tick.add(Stage.WAKE, partial(self._release, client_id, keys))


def _handed_out(message: LakeMessage, now_ms: int) -> InFlight:
    """In flight and due; under an id that no handle has."""
    return InFlight(
        message.queue_offset,
        message.attempt,
        now_ms,
        new_delivery_id(),
        message.message_id,
        "",
        nacked=True,
    )
