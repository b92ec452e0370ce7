"""A machine that searches for violations of delivery: hypothesis drives a real broker in this process, through errors at
any of its store's calls, restarts and crashes, and every step is compared with what it may have changed. One of its groups
is ordered.

| must hold | looked at |
|---|---|
| nothing lost | what leaves the line of new messages or flight was acknowledged, is in the dead letters, was passed over by a filter of that step, or an administrator or client moved the offset past it |
| nothing stuck | every message in flight is due at a known time, which the table of queues knows; at the end all can be had and settled |
| nothing twice at once | no message is handed out while a client holds it, nor after an acknowledgement that was answered OK |
| the committed offset passes nothing unsettled | it is the first in flight, or the cursor |
| attempts | a delivery counts one more than the one before; one that no client saw, or that was suspended, does not count |
| a restart changes nothing | offsets, and of each message in flight: handle, attempt, when it is due, to whom before that, and whether its delivery counts |
| nothing parallel in a message group | to the ordered group none is handed out while a client has another one, but by the same receive |
| order in a message group | to the ordered group none is handed out while one before it is open, unless that goes to the same receive |
| a repeated attempt | to the ordered group it gives what the attempt took and its client still has, and nothing else, behind a restart too |

`delivery_cuts.cuts` goes further: it ends the log behind each record of it, and begins again there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from broker_gateway.delivery.in_flight import Status
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.journal.replay import records_from
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.metadata.names import dead_letter_topic
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import Call, InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.messages import (
    change_invisible_request,
    dead_letter_request,
    receive_request,
    received,
)
from store.errors import StoreError
from store.log.copies import ORIGIN_PROPERTY, decode_origin
from tests.support.brokers.delivery_checks import check_queues
from tests.support.brokers.delivery_known import (
    ATTEMPTS,
    CLIENTS,
    FILTERS,
    GROUPS,
    MESSAGE_GROUPS,
    ORDERED,
    QUEUES,
    TOPIC,
    Before,
    Held,
    Known,
    Moment,
    Place,
    Poll,
)

_BEGIN_MS = 1_900_000_000_000
"""When every example begins, that it takes the same course again: statistics are written when a minute ends."""


class DeliveryMachine(RuleBasedStateMachine):
    """See above. Its rules may be called by hand, to keep what was found: `start`, rules, `teardown`."""

    @initialize(snapshot_bytes=st.sampled_from((2048, 1 << 40)), compiled=st.booleans())
    def start(self, snapshot_bytes: int = 1 << 40, compiled: bool = False) -> None:
        self.snapshot_bytes = snapshot_bytes
        self.compiled = compiled
        broker = InProcessBroker(
            clock=ManualClock(_BEGIN_MS),
            lakeJournalSnapshotBytes="1048576",
            log_level="critical",
        )
        self.broker = broker.__enter__()
        self.broker.create_topic(TOPIC, QUEUES)
        for group, attempts in ATTEMPTS.items():
            self.broker.create_group(group, retry_max_times=attempts - 1, fifo=group == ORDERED)
        self._begin({group: Known() for group in GROUPS})

    def _begin(self, known: dict[str, Known]) -> None:
        self.tags: dict[Place, str] = {}
        self.groups: dict[Place, str] = {}
        """The message group; '' of a message without one."""
        self.known = known
        self.moments: list[Moment] = []
        self.handles: list[Held] = []
        self.polls: list[Poll] = []
        self.faulty = False
        """An error was raised: what was not answered OK may be either way, and an attempt may count that nobody saw."""
        self.gone = False
        """A client hung up: what it was to get may go to another filter in the end."""
        self.entries_left: int | None = None
        self._prepare()

    # ----- what clients do -----

    @rule(tags=st.lists(st.sampled_from("ab"), min_size=1, max_size=4))
    def send(self, tags: Sequence[str]) -> None:
        with self._step():
            for tag in tags:
                answer = self.broker.send(TOPIC, tag.encode(), tag=tag)
                if answer.status.code != pb.OK:
                    assert self.faulty, answer

    @rule(
        messages=st.lists(
            st.tuples(st.sampled_from(MESSAGE_GROUPS), st.sampled_from("ab")), min_size=1, max_size=4
        )
    )
    def send_ordered(self, messages: Sequence[tuple[str, str]]) -> None:
        with self._step():
            for group, tag in messages:
                answer = self.broker.send(
                    TOPIC, tag.encode(), tag=tag, message_type=pb.FIFO, message_group=group
                )
                if answer.status.code != pb.OK:
                    assert self.faulty, answer

    @rule(
        group=st.sampled_from(GROUPS),
        client=st.sampled_from(CLIENTS),
        tags=st.sampled_from(FILTERS),
        batch=st.integers(1, 5),
        invisible_ms=st.sampled_from((100, 1000, 10_000, 30_000)),
        attempt_id=st.sampled_from(("", "", "x", "y")),
        gone=st.booleans(),
    )
    def receive(
        self,
        group: str,
        client: str,
        tags: str,
        batch: int,
        invisible_ms: int,
        attempt_id: str = "",
        gone: bool = False,
    ) -> None:
        request = receive_request(
            TOPIC,
            group,
            batch=batch,
            invisible_ms=invisible_ms,
            filter=tags,
            wait_ms=0,
            attempt_id=attempt_id,
        )
        with self._step((group, tags)):
            kept = self._kept(group, client, attempt_id)
            call = self.broker.begin("ReceiveMessage", request, client_id=client, gone=gone)
            self.polls.append(Poll(call, group, tags, client, attempt_id))
            assert call.done or gone
            if gone:
                self._lose_poll(self.polls[-1])
            elif kept and not self.faulty:
                self._compare_repeated(group, kept, received(call.response)[1])

    @rule(
        group=st.sampled_from(GROUPS),
        client=st.sampled_from(CLIENTS),
        tags=st.sampled_from(FILTERS),
        wait_ms=st.sampled_from((500, 20_000)),
    )
    def wait(self, group: str, client: str, tags: str, wait_ms: int) -> None:
        request = receive_request(TOPIC, group, batch=2, invisible_ms=1000, filter=tags, wait_ms=wait_ms)
        with self._step((group, tags)):
            call = self.broker.begin("ReceiveMessage", request, client_id=client)
            self.polls.append(Poll(call, group, tags, client))

    @precondition(lambda self: self.polls)
    @rule(number=st.integers(0, 20))
    def hang_up(self, number: int) -> None:
        with self._step():
            poll = self.polls[number % len(self.polls)]
            self.broker.hang_up(poll.call)
            self._lose_poll(poll)

    @precondition(lambda self: self.handles)
    @rule(numbers=st.lists(st.integers(0, 200), min_size=1, max_size=4))
    def ack(self, numbers: Sequence[int]) -> None:
        with self._step():
            first = self._handle(numbers[0])
            held = [each for each in map(self._handle, numbers) if each.group == first.group]
            now = self.broker.clock.now_ms
            valid = [self._holds(each, now) for each in held]
            answer = self.broker.ack(TOPIC, first.group, *[each.message for each in held])
            entries = answer.entries if answer.entries else [answer] * len(held)
            taken: set[str] = set()
            for each, entry, was_valid in zip(held, entries, valid, strict=True):
                handle = each.message.system_properties.receipt_handle
                if entry.status.code == pb.OK:
                    assert handle not in taken, "one handle is acknowledged once"
                    assert was_valid, f"{each} was not held any more"
                    taken.add(handle)
                    self._settled(each)
                elif entry.status.code == pb.INVALID_RECEIPT_HANDLE:
                    assert not was_valid or handle in taken or self.faulty, f"{each} was held"
                else:
                    assert self.faulty, entry
                    self._unsure(each)

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 200), ms=st.sampled_from((0, 300, 5000)), suspend=st.booleans())
    def nack(self, number: int, ms: int, suspend: bool = False) -> None:
        with self._step():
            held = self._handle(number)
            was_valid = self._holds(held, self.broker.clock.now_ms)
            request = change_invisible_request(TOPIC, held.group, held.message, ms)
            request.suspend = suspend
            before = self.known[held.group]
            before.held.pop(held.place, None) if was_valid else None
            answer = self.broker.call("ChangeInvisibleDuration", request)
            if answer.status.code == pb.OK:
                assert was_valid, f"{held} was not held any more"
                message = pb.Message()
                message.CopyFrom(held.message)
                message.system_properties.receipt_handle = answer.receipt_handle
                until_ms = self.broker.clock.now_ms + ms
                changed = replace(
                    held, message=message, until_ms=until_ms, suspended=suspend, nacked=True, poll=None
                )
                if ms:
                    before.held[held.place] = changed
                    self.handles.append(changed)
                before.attempts[held.place] = held.attempt - suspend
            elif answer.status.code == pb.INVALID_RECEIPT_HANDLE:
                assert not was_valid or self.faulty, f"{held} was held"
            else:
                assert self.faulty, answer

    @precondition(lambda self: self.handles)
    @rule(number=st.integers(0, 200))
    def give_up(self, number: int) -> None:
        with self._step():
            held = self._handle(number)
            was_valid = self._holds(held, self.broker.clock.now_ms)
            answer = self.broker.call(
                "ForwardMessageToDeadLetterQueue", dead_letter_request(TOPIC, held.group, held.message)
            )
            if answer.status.code == pb.OK:
                assert was_valid, f"{held} was not held any more"
                self._settled(held)
            elif answer.status.code == pb.INVALID_RECEIPT_HANDLE:
                assert not was_valid or self.faulty, f"{held} was held"
            else:
                assert self.faulty, answer
                self._unsure(held)

    # ----- what time and administrators do -----

    @rule(seconds=st.sampled_from((0.05, 0.6, 3.0, 30.0)), at_once=st.booleans())
    def advance(self, seconds: float, at_once: bool = False) -> None:
        with self._step():
            (self.broker.jump if at_once else self.broker.advance)(seconds)

    @rule(group=st.sampled_from(GROUPS), queue_id=st.integers(0, QUEUES - 1), to=st.integers(0, 12))
    def reset(self, group: str, queue_id: int, to: int) -> None:
        end = self.broker.store.index.max_offset(TOPIC, queue_id)
        to = min(to, end)
        with self._step(moved={group}):
            try:
                self.broker.reset(TOPIC, group, queue_id, to)
            except ServiceError:
                assert self.faulty
                return
            self._forget(group, queue_id, to, everything=True)

    @rule(group=st.sampled_from(GROUPS), queue_id=st.integers(0, QUEUES - 1), to=st.integers(0, 12))
    def commit(self, group: str, queue_id: int, to: int) -> None:
        with self._step(moved={group}):
            state = self._state(group, queue_id)
            flying = dict(state.in_flight) if state is not None else {}
            polled = any(poll.group == group for poll in self.polls)
            changes = self.broker.broker.parts.offset_changes
            try:
                self.broker.do(partial(changes.commit, group, TOPIC, queue_id, to))
            except ServiceError:
                assert self.faulty
                return
            end = self.broker.store.index.max_offset(TOPIC, queue_id)
            if not polled:
                assert self.broker.committed(TOPIC, group, queue_id) == min(to, end)
                state = self._state(group, queue_id)
                assert state is not None
                assert set(state.in_flight) == set(flying), "a commit takes nothing out of flight"
            self._forget(group, queue_id, min(to, end), everything=False)

    # ----- what goes wrong -----

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        """What is in flight is as it was; after errors something may be in flight again that was settled."""
        self._heal()
        before = {state.key: self._seen(state) for state in self.broker.broker.deliveries.queues()}
        self._collect()
        self.polls.clear()
        (self.broker.crash if crash else self.broker.restart)()
        self._prepare()
        for key, (offset, position, flying) in before.items():
            state = self.broker.broker.deliveries.known(key)
            if state is None:
                assert self.faulty or offset == position == 0, f"{key} is not known any more"
                continue
            found = self._seen(state)
            if not self.faulty:
                assert found == (offset, position, flying), (
                    f"{key}: {found}, before {(offset, position, flying)}"
                )
            known = self.known[key.group]
            for place, tag in self.tags.items():
                if place[0] == key.queue_id and place[1] not in state.in_flight and place[1] < state.position:
                    was_open = place[1] in flying or place[1] >= position
                    assert not was_open or place in known.maybe or self._dead(key, place[1]), (
                        key,
                        place,
                        tag,
                    )
        check_queues(self.broker, self.groups)
        self._remember()

    @rule(
        call=st.sampled_from(("append", "append_columns", "read", "record", "entries")),
        after=st.integers(0, 6),
        error=st.sampled_from((OSError(errno.ENOSPC, "No space left"), StoreError("injected"))),
    )
    def break_one(self, call: str, after: int, error: Exception) -> None:
        """One of the next calls of the store fails."""
        self.faulty = True
        if call == "entries":
            self.entries_left, self.entries_error = after, error
        else:
            self.broker.store.inject(call, error, after=after)

    def teardown(self) -> None:
        """All that is open can be had, with its filter or without, and settled."""
        if not hasattr(self, "broker"):
            return
        try:
            self._heal()
            for poll in list(self.polls):
                self.hang_up(self.polls.index(poll))
            with self._step():
                for _ in range(100):  # every timer on the way, by its time, was half of what a run took
                    self.broker.jump(1.0)
            for group in GROUPS:
                for _ in range(len(self.tags) + 20):
                    count = len(self.handles)
                    self.receive(group, "one", "*", 5, 10_000)
                    if len(self.handles) == count:
                        break
                    self.ack(range(count, len(self.handles)))
                for queue_id in range(QUEUES):
                    state = self._state(group, queue_id)
                    if state is not None:
                        end = self.broker.store.index.max_offset(TOPIC, queue_id)
                        assert not state.in_flight, f"{group} keeps {list(state.in_flight)} of {queue_id}"
                        assert state.position >= end
        finally:
            self.broker.__exit__(AssertionError, None, None)

    # ----- what is known -----

    def _handle(self, number: int) -> Held:
        return self.handles[number % len(self.handles)]

    def _state(self, group: str, queue_id: int) -> QueueDelivery | None:
        return self.broker.broker.deliveries.known(QueueKey(group, TOPIC, queue_id))

    @staticmethod
    def _seen(state: QueueDelivery) -> tuple[int, int, dict[int, tuple[object, ...]]]:
        """What a restart keeps. What is READY is due, whatever it was before."""
        flying = {
            offset: (
                each.attempt,
                each.delivery_id,
                each.invisible_until_ms,
                each.message_id,
                each.nacked,
                each.suspended,
                each.first_delivered_ms,
                each.attempt_id,
                (Status.RETURNED, each.tags_code) if each.status == Status.RETURNED else None,
                each.status == Status.HELD,
            )
            for offset, each in state.in_flight.items()
        }
        return state.consumer_offset, state.position, flying

    def _kept(self, group: str, client: str, attempt_id: str) -> set[str]:
        """Handles that a repeated attempt of the ordered group must give again."""
        if group != ORDERED or not attempt_id:
            return set()
        known, now = self.known[group], self.broker.clock.now_ms
        return {
            held.message.system_properties.receipt_handle
            for place, held in known.held.items()
            if held.poll is not None
            and (held.poll.client, held.poll.attempt_id) == (client, attempt_id)
            and held.until_ms > now
            and place not in known.maybe
        }

    def _compare_repeated(self, group: str, kept: set[str], again: Sequence[pb.Message]) -> None:
        handles = {each.system_properties.receipt_handle: each for each in again}
        others = [each.system_properties for handle, each in handles.items() if handle not in kept]
        assert kept <= handles.keys(), "a repeated attempt gives what it took"
        for each in others:
            place = each.queue_id, each.queue_offset
            assert place in self.known[group].maybe, f"{place} is not of the attempt"

    def _holds(self, held: Held, now: int) -> bool:
        found = self.known[held.group].held.get(held.place)
        return (
            found is not None
            and found.message.system_properties.receipt_handle
            == held.message.system_properties.receipt_handle
            and found.until_ms > now
        )

    def _settled(self, held: Held) -> None:
        known = self.known[held.group]
        known.settled.add(held.place)
        known.held.pop(held.place, None)

    def _unsure(self, held: Held) -> None:
        self.known[held.group].maybe.add(held.place)

    def _forget(self, group: str, queue_id: int, offset: int, *, everything: bool) -> None:
        """A group was sent elsewhere: what is behind comes again; what clients hold is void after a reset."""
        known = self.known[group]
        for place in [
            each for each in (*known.settled, *known.maybe) if each[0] == queue_id and each[1] >= offset
        ]:
            known.settled.discard(place)
            known.maybe.add(place)
            known.attempts.pop(place, None)
        if everything:
            for place in [each for each in known.held if each[0] == queue_id]:
                if known.held[place].until_ms:
                    del known.held[place]
            for place in [each for each in known.attempts if each[0] == queue_id]:
                del known.attempts[place]

    def _lose_poll(self, poll: Poll) -> None:
        self.gone = True
        if not poll.call.done:
            self.polls.remove(poll)

    def _new_messages(self) -> None:
        """Queues and offsets of messages that were sent."""
        for queue_id in range(QUEUES):
            for _, record in records_from(self.broker.store, TOPIC, queue_id, 0):
                place = queue_id, record.queue_offset
                self.tags[place] = bytes(record.body).decode()
                self.groups[place] = record.properties_map().get("__SHARDINGKEY", "")

    def _dead(self, key: QueueKey, offset: int) -> bool:
        for _, record in records_from(self.broker.store, dead_letter_topic(key.group), 0, 0):
            origin = decode_origin(record.properties_map().get(ORIGIN_PROPERTY, ""))
            if origin is not None and (origin.queue_id, origin.queue_offset) == (key.queue_id, offset):
                return True
        return False

    # ----- errors -----

    def _prepare(self) -> None:
        """Snapshots begin all the time or never, and reads of the index can fail, too."""
        self.broker.broker.journal._pace = SnapshotPace(self.snapshot_bytes, 100)
        if self.compiled:
            assert self.broker.broker.load_compiled()
        index = self.broker.store.index
        entries = index.entries

        def watched(topic: str, queue_id: int, start: int, count: int) -> Any:
            if not self.quiet:
                self.broker.store.calls["entries"] += 1
            if self.entries_left is not None and not self.quiet:
                self.entries_left -= 1
                if self.entries_left < 0:
                    self.entries_left = None
                    raise self.entries_error
            return entries(topic, queue_id, start, count)

        self.quiet = False
        index.entries = watched  # type: ignore[method-assign]

    def _heal(self) -> None:
        self.entries_left = None
        self.broker.store.heal()

    # ----- every step -----

    @contextmanager
    def _step(self, *asked: tuple[str, str], moved: set[str] | None = None) -> Iterator[None]:
        """Compares what was and what is; `asked`: group and filter of receives beside those that wait."""
        before = self._before()
        polls = self.asked = [*asked, *[(poll.group, poll.tags) for poll in self.polls]]
        yield
        self.quiet = True
        try:
            with self.broker.store.without_faults():
                self._new_messages()
                self._collect()
                for key, then in before.items():
                    self._compare(key, then, polls, key.group in (moved or ()))
                check_queues(self.broker, self.groups)
                self._remember()
        finally:
            self.quiet = False

    def _remember(self) -> None:
        """For `cuts`."""
        known = {
            group: Known(set(each.settled), set(each.maybe), dict(each.held), dict(each.attempts))
            for group, each in self.known.items()
        }
        end, now = self.broker.store.max_offset, self.broker.clock.now_ms
        self.moments.append(Moment(end, now, known, self._before()))

    def _before(self) -> dict[QueueKey, Before]:
        return {
            key: Before(0, 0, frozenset()) if state is None else self._before_of(state)
            for group in GROUPS
            for queue_id in range(QUEUES)
            for key in (QueueKey(group, TOPIC, queue_id),)
            for state in (self.broker.broker.deliveries.known(key),)
        }

    @staticmethod
    def _before_of(state: QueueDelivery) -> Before:
        return Before(state.position, state.cursor, frozenset(state.in_flight))

    def _collect(self) -> None:
        """What calls under way were answered with, in the order of time."""
        answered = [poll for poll in self.polls if poll.call.done]
        self.polls = [poll for poll in self.polls if not poll.call.done]
        for poll in sorted(answered, key=lambda poll: self._time_of(poll.call)):
            code, messages = received(poll.call.response)
            if code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                assert self.faulty, poll.call.response
            for message in messages:
                self._delivered(poll, message, self._time_of(poll.call))

    @staticmethod
    def _time_of(call: Call) -> int:
        times: list[int] = [
            each.delivery_timestamp.ToMilliseconds()
            for each in call.response
            if isinstance(each, rpc.ReceiveMessageResponse) and each.HasField("delivery_timestamp")
        ]
        return times[0] if times else 0

    def _delivered(self, poll: Poll, message: pb.Message, now: int) -> None:
        system, known = message.system_properties, self.known[poll.group]
        place = (system.queue_id, system.queue_offset)
        until = now + system.invisible_duration.ToMilliseconds()
        held = Held(message, poll.group, place, system.delivery_attempt, until, poll=poll)
        assert place not in known.settled, f"{poll.group} got {place} again after it was settled"
        earlier = known.held.get(place)
        if earlier is not None and earlier.until_ms > now:
            same = earlier.message.system_properties.receipt_handle == system.receipt_handle
            assert same, f"{poll.group} got {place} while a client held it until {earlier.until_ms}, at {now}"
            assert earlier.attempt == held.attempt
            self.handles.append(earlier)
            return
        counted = known.attempts.get(place, 0)
        if not self.faulty and place not in known.maybe:
            assert held.attempt == counted + 1, (
                f"{poll.group} {place}: attempt {held.attempt} behind {counted}"
            )
        if not self.faulty and not self.gone and place not in known.attempts:
            # what was held back was taken by the filter of another receive
            filters = [poll.tags] if poll.group != ORDERED else self._filters_of(poll.group, place)
            fits = any(tags == "*" or self.tags[place] in tags for tags in filters)
            assert fits, f"{place} is not for {filters}"
        if poll.group == ORDERED:
            self._in_order(poll, place, now)
        known.attempts[place] = held.attempt
        known.held[place] = held
        self.handles.append(held)

    def _filters_of(self, group: str, place: Place) -> list[str]:
        """Those that may have had it held back."""
        before = self.moments[-1].queues[QueueKey(group, TOPIC, place[0])] if self.moments else None
        held_back = before is not None and place[1] in before.flying
        return ["*"] if held_back else [tags for each, tags in self.asked if each == group]

    def _in_order(self, poll: Poll, place: Place, now: int) -> None:
        """A message that goes to the ordered group comes behind all of its message group that are open, and beside none."""
        known, group = self.known[poll.group], self.groups[place]
        state = self._state(poll.group, place[0])
        for other, its_group in self.groups.items():
            if other == place or (other[0], its_group) != (place[0], group) or other in known.maybe:
                continue
            held = known.held.get(other)
            with_it = held is not None and (
                held.poll is poll or (held.until_ms > now and _repeats(poll, held.poll))
            )
            if held is not None and held.until_ms > now and not held.nacked:
                assert with_it, f"{place} of {group!r} was handed out while a client had {other}"
            offset = other[1]
            if offset < place[1] and other not in known.settled:
                is_open = state is None or offset in state.in_flight or offset >= state.position
                assert with_it or not is_open, f"{place} of {group!r} was handed out before {other}"

    def _compare(self, key: QueueKey, then: Before, polls: Sequence[tuple[str, str]], moved: bool) -> None:
        """What is open no longer."""
        state = self.broker.broker.deliveries.known(key)
        if state is None or moved:
            return
        known = self.known[key.group]
        filters = [tags for group, tags in polls if group == key.group]
        start = min(then.position, state.position)
        for place, tag in self.tags.items():
            queue_id, offset = place
            if queue_id != key.queue_id or offset in state.in_flight or offset >= state.position:
                continue
            if offset in then.flying:
                fine = place in known.settled or place in known.maybe or self._dead(key, offset)
                assert fine, f"{key}: {offset} left flight"
            elif offset >= max(start, then.position):
                passed = any(tags != "*" and tag not in tags for tags in filters)
                fine = passed or place in known.settled or place in known.maybe or self._dead(key, offset)
                assert fine, f"{key}: {offset} ({tag}) was passed over by {filters}"


def _repeats(poll: Poll, earlier: Poll | None) -> bool:
    """Whether both are one attempt."""
    return (
        bool(poll.attempt_id)
        and earlier is not None
        and (earlier.group, earlier.client, earlier.attempt_id) == (poll.group, poll.client, poll.attempt_id)
    )
