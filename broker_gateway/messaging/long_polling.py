"""Receiving: what is there at once, or long polling.

What a call takes (`take.py`) is in flight and journaled before the reply goes out; when its client went away before
that, it is given back.

Sends and acks go first: receives search for messages until those of a tick have taken `_TICK_WORK`. The others, and those
whose search goes on, stand in a line, and search at the end of this tick and of the next ones, behind the sends and acks that
were read meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.admission import Bulkhead
from broker_gateway.messaging.attempts import Attempts
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError, outcome_of
from broker_gateway.messaging.poll import Poll
from broker_gateway.messaging.take import Taker
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.runtime.clock import monotonic_s, now_ms
from broker_gateway.runtime.fair_queue import FairQueue
from broker_gateway.runtime.reply import Reply
from broker_gateway.runtime.shares import host_of
from broker_gateway.runtime.tick import Stage
from store.errors import StoreReadOnlyError

log = structlog.get_logger(__name__)

_TICK_WORK = 64 << 10
"""Of a tick's receives, in bytes of bodies; what else they do counts as so many bytes:"""
_A_MESSAGE = 512
_A_SEARCH = 4 << 10
_A_SEARCH_THAT_GOES_ON = _TICK_WORK
_NOTHING = Outcome(Reason.MESSAGE_NOT_FOUND, "no new message")


class LongPolling:
    """Hands messages to consumers."""

    def __init__(
        self, config: GatewayConfig, core: Core, taker: Taker, attempts: Attempts, bulkhead: Bulkhead
    ) -> None:
        self._taker = taker
        self._attempts = attempts
        self._core = core
        self._deliveries = core.deliveries
        self._journal = core.journal
        self._wakeups = wakeups = core.wakeups
        self._metrics = core.metrics
        self._minutes = core.minutes
        self._bulkhead = bulkhead
        self._max_waiting = config.lake.lake_max_waiting_receives
        self._tick = core.tick
        self._searching: FairQueue[Poll] = FairQueue()
        self._spent = 0
        self._scheduled = False
        self._closing = False
        wakeups.serve_by(self._serve)
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._taker.configure(config)
        for state in self._deliveries.queues():
            self._core.made_room(state)

    def listen(self, catalog: Catalog) -> None:
        """Has those who wait search again when their topic or group changes or goes: they may not wait any longer."""
        catalog.listen(
            topic_changed=lambda topic: self._wakeups.topic_changed(topic.name),
            group_changed=lambda group: self._group_changed(group.name),
            removed=self._removed,
        )

    def _group_changed(self, name: str) -> None:
        # what was held back can be had once the group is not ordered any more
        for key in self._deliveries.keys_of_group(name):
            self._deliveries.arrivals.came_back(key)
        self._wakeups.group_changed(name)

    def _removed(self, topic: str) -> None:
        """A topic is gone, or a group with its retry topic."""
        self._wakeups.topic_changed(topic)
        if topic.startswith(RETRY_PREFIX):
            self._wakeups.group_changed(topic.removeprefix(RETRY_PREFIX))

    def check(self, peer: str) -> None:
        """Raises ServiceError TOO_MANY_REQUESTS when no receive of `peer` (`host:port`) is taken now."""
        self._bulkhead.check(peer)

    def receive(self, poll: Poll) -> Reply[Any]:
        """What `poll.writer` gives, once there is something; raises ServiceError when the call cannot be served."""
        poll.reply = Reply(partial(self._left, poll), self._bulkhead, poll.peer)
        try:
            if self._attempts.repeat(poll):
                self._journal.after(partial(self._finish, poll))
            elif self._searching or self._spent >= _TICK_WORK or poll.filter.costly:
                poll.put_off_s = monotonic_s()
                self._search_on(poll)
            else:
                self._search(poll)
        except Exception:
            poll.reply.abandon()
            self._attempts.release(poll)
            raise
        return poll.reply

    def _search(self, poll: Poll) -> None:
        """Takes what is there. Where there is nothing, the poll searches on in later ticks, or waits."""
        if self._take(poll):
            self._answer_when_kept(poll)
        elif poll.left:
            self._search_on(poll)
        else:
            self._wait(poll)

    def _search_on(self, poll: Poll) -> None:
        """Others are served before it searches, or goes on with a long stretch."""
        self._searching.append(host_of(poll.peer), poll)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._tick.add(Stage.SEARCH, self._run_searches)

    def _run_searches(self) -> None:
        """The end of a tick: those in line search while something of its budget is left."""
        self._scheduled = False
        try:
            while self._searching and self._spent < _TICK_WORK:
                poll = self._searching.pop()
                if not poll.reply.done:
                    self._serve_next(poll)
        finally:
            self._spent = 0
            if self._searching:
                self._schedule()

    def _serve_next(self, poll: Poll) -> None:
        """One that was put off searches for the first time, unless it waited too long for that; others go on."""
        put_off_s, poll.put_off_s = poll.put_off_s, 0.0
        late = self._bulkhead.late(put_off_s) if put_off_s else None
        if late is not None:
            self._finish(poll, late)
        else:
            self._search_again(poll)

    def _take(self, poll: Poll) -> bool:
        """A search, and what it took of the tick's budget."""
        poll.woken = False
        try:
            return self._taker.take(poll)
        finally:
            self._spent += poll.body_bytes + len(poll.messages) * _A_MESSAGE
            self._spent += _A_SEARCH_THAT_GOES_ON if poll.left or poll.filter.costly else _A_SEARCH
            self._schedule()

    def _search_again(self, poll: Poll) -> None:
        try:
            if self._take(poll):
                self._answer_when_kept(poll)
                self._wakeups.due(poll.line, poll.group.name)  # there may be more for those who wait
            elif poll.left or self._taker.queues.missed(poll):
                self._searching.append(host_of(poll.peer), poll)
            else:
                self._wait(poll)
        except Exception as error:
            self._finish(poll, error)
            self._wakeups.due(poll.line, poll.group.name)  # the next waiter goes on searching

    def _answer_when_kept(self, poll: Poll) -> None:
        """Gives what was taken once the journal has it; when the log did not take some of it, none."""
        self._journal.after(partial(self._finish, poll), since=poll.journal_mark)

    def _finish(self, poll: Poll, error: Exception | None = None) -> None:
        """Gives the reply; when what should go into it fails, one that says so."""
        try:
            self._give(poll, error)
        except Exception as failed:
            log.error("call failed", call="ReceiveMessage", exc_info=failed)
            try:
                self._attempts.release(poll)
            finally:
                self._refuse(poll, failed)

    def _refuse(self, poll: Poll, failed: Exception) -> None:
        """Says that the call failed; where even that cannot be written, its place is free at least."""
        try:
            poll.writer.answer(poll, outcome_of(failed), now_ms())
        except Exception:
            log.exception("a receive could not be answered")
            poll.reply.abandon()

    def _give(self, poll: Poll, error: Exception | None) -> None:
        """Gives the reply, after what it holds is in the journal.

        A store that turned read-only takes no journal, and what is in it can still be had: a start delivers it again.
        """
        if poll.timer is not None:
            poll.timer.cancel()
        if error is not None and not isinstance(error, StoreReadOnlyError):
            self._attempts.release(poll)
            if not isinstance(error, ServiceError):
                log.error("call failed", call="ReceiveMessage", exc_info=error)
            poll.writer.answer(poll, outcome_of(error), now_ms())
            return
        if poll.reply.done:
            return  # the caller went away, and what it took was given back
        if not poll.messages:
            self._metrics.received_nothing()
            poll.writer.answer(poll, _NOTHING, now_ms())
            return
        self._attempts.remember(poll)
        self._metrics.received(poll.topic.name, poll.group.name, len(poll.messages), poll.body_bytes)
        self._minutes.count(poll.topic.name, poll.group.name, len(poll.messages), poll.body_bytes, None)
        poll.writer.answer(poll, OK, now_ms())

    def _left(self, poll: Poll) -> None:
        """The caller went away before it had its reply."""
        if poll.timer is not None:
            poll.timer.cancel()
        self._wakeups.leave(poll.line, poll.group.name, poll)
        self._attempts.release(poll)
        self._stop_searching(poll)

    def _stop_searching(self, poll: Poll) -> None:
        """It searches no further: the next waiter goes on searching."""
        if poll.left or poll.woken:
            self._wakeups.due(poll.line, poll.group.name)

    def close(self) -> None:
        """Ends every waiting call with nothing; later ones do not wait."""
        self._closing = True
        for poll in [*self._wakeups.all(), *self._searching]:
            self._expired(poll)

    def _wait(self, poll: Poll) -> None:
        if self._closing or poll.wait_s <= 0:
            self._journal.after(partial(self._finish, poll))
            return
        if poll.timer is None:
            if self._wakeups.waiting + len(self._searching) >= self._max_waiting:
                raise ServiceError(
                    Reason.TOO_MANY_REQUESTS,
                    f"{self._max_waiting} receives wait already (lakeMaxWaitingReceives); try again later",
                )
            poll.timer = asyncio.get_running_loop().call_later(poll.wait_s, self._expired, poll)
        self._wakeups.enter(poll.line, poll.group.name, poll)

    def _expired(self, poll: Poll) -> None:
        """Nothing came while it waited."""
        self._wakeups.leave(poll.line, poll.group.name, poll)
        self._stop_searching(poll)
        self._journal.after(partial(self._finish, poll))

    def _serve(self, poll: Poll) -> bool:
        """Searches for a waiter; False when there was nothing, or when it searches on and those behind it wait for that."""
        if poll.reply.done:
            return True
        if poll.filter.costly:
            self._wakeups.leave(poll.line, poll.group.name, poll)
            poll.woken = True
            self._search_on(poll)
            return False
        try:
            if not self._taker.take(poll):
                if poll.left:
                    self._wakeups.leave(poll.line, poll.group.name, poll)
                    self._search_on(poll)
                return False
        except Exception as error:
            self._finish(poll, error)
            return True
        self._answer_when_kept(poll)
        return True
