"""One search of a poll, which a receive makes of it (`take.py`): its bounds, and what becomes of each message it reads."""

from __future__ import annotations

from broker_gateway.delivery.handles import encode_handle
from broker_gateway.delivery.in_flight import InFlight, Plan
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey, held_back
from broker_gateway.delivery.retry_topics import handle_queue
from broker_gateway.messaging.poll import RECEIVE_BYTES, Poll
from broker_gateway.messaging.stored_message import StoredMessage
from store.log.record import tags_code

SCAN_ENTRIES = 4096
SEARCH = 8 * SCAN_ENTRIES
"""Queue entries that a search goes through. What else it does counts as so many entries:"""
_A_QUEUE = 512
A_SKIP = 64
_BYTES_AN_ENTRY = 128
"""Of a message that is read and then passed over."""
SKIPS_A_PLAN = 512
"""Their events fit one record of the journal with those of the messages."""


class PollSearch:
    """How much more a search of a poll may do, and what it found in the queue `begin` named."""

    __slots__ = (
        "body_bytes",
        "floor",
        "handle_queue",
        "key",
        "messages",
        "most_bytes",
        "now",
        "ordered",
        "poll",
        "retry",
        "state",
        "work",
    )
    key: QueueKey
    state: QueueDelivery
    floor: int
    handle_queue: int
    retry: bool

    def __init__(self, poll: Poll, now: int) -> None:
        self.poll = poll
        self.now = now
        self.ordered = poll.group.fifo or poll.lite is not None
        self.work = SEARCH
        self.messages: list[bytes] = []
        self.body_bytes = 0
        self.most_bytes = RECEIVE_BYTES

    def begin(self, key: QueueKey, state: QueueDelivery, floor: int) -> None:
        self.work -= _A_QUEUE
        self.key = key
        self.state = state
        self.floor = floor
        self.handle_queue = handle_queue(key)
        self.retry = self.handle_queue != key.queue_id and self.poll.lite is None
        self.most_bytes = RECEIVE_BYTES - self.poll.body_bytes
        self.messages = []
        self.body_bytes = 0

    def room(self, plan: Plan) -> int:
        """How many more new messages may be taken from the queue."""
        if self.body_bytes >= self.most_bytes:
            return 0
        left = self.poll.batch_size - len(self.poll.messages) - len(self.messages)
        return min(left, plan.room_left)

    def wants(self, stored: StoredMessage) -> bool:
        """Whether the filter lets a message through that was read."""
        self.work -= self.poll.filter.work
        return self.poll.filter.wants(stored.properties)

    def passed_over(self, size: int) -> None:
        """A record of so many bytes was read that the filter does not want."""
        self.work -= A_SKIP + size // _BYTES_AN_ENTRY

    def deliver(self, stored: StoredMessage, offset: int, attempt: int, tags_code: int) -> InFlight:
        """Puts a message into what the reply will have."""
        poll = self.poll
        handle = encode_handle(self.handle_queue, offset, poll.delivery_id)
        written = poll.writer.message(stored, poll.topic.name, handle, attempt, poll.invisible_ms)
        made = self.add(written, stored.body_length, stored.message_id, offset, attempt, tags_code)
        if self.ordered:
            made.message_group, made.attempt_id = stored.message_group, poll.attempt_id
        return made

    def add(
        self, written: bytes, body_length: int, message_id: str, offset: int, attempt: int, tags_code: int
    ) -> InFlight:
        """The same of one that is written already."""
        poll = self.poll
        self.messages.append(written)
        self.body_bytes += body_length
        return InFlight(
            offset,
            attempt,
            self.now + poll.invisible_ms,
            poll.delivery_id,
            message_id,
            poll.client_id,
            poll.auto_renew,
            False,
            self.now,
            tags_code,
            host=poll.renewed_at,
        )

    def ends(self, plan: Plan) -> bool | None:
        """None: the search of the queue goes on; else whether it is done with the queue."""
        if self.room(plan) == 0:
            return True
        if self.work <= 0 or len(plan.held) + len(plan.skipped) >= SKIPS_A_PLAN:
            return False
        return None

    def take_new(
        self,
        plan: Plan,
        offset: int,
        stored: StoredMessage | None,
        attempt: int,
        code: int | None,
    ) -> None:
        """A new message is delivered, held back, skipped, or passed over by the filter; `code`: None of one whose tag says it."""
        if stored is None:
            self.skip(plan, offset)
            return
        if attempt == 1 and not self.wants(stored):
            self.passed_over(len(stored.data))
            return
        if code is None:
            code = tags_code(stored.properties.get("TAGS"))
        turn = plan.turn
        if turn is not None and not turn.takes(stored.message_group):
            self.work -= A_SKIP
            turn.close(stored.message_group)
            plan.held.append(held_back(offset, attempt - 1, stored.message_id, code, stored.message_group))
            return
        plan.delivered.append(self.deliver(stored, offset, attempt, code))

    def skip(self, plan: Plan, offset: int) -> None:
        """A new message that cannot be read; it is settled."""
        poll = self.poll
        self.work -= A_SKIP
        plan.skipped.append(InFlight(offset, 1, self.now, poll.delivery_id, "", poll.client_id))
