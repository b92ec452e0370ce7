"""One search of a receive: how much more work it may do, and what it found in a queue."""

from __future__ import annotations

from broker_gateway.delivery.handles import encode_handle
from broker_gateway.delivery.in_flight import InFlight, Plan
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.retry_topics import handle_queue
from broker_gateway.messaging.poll import RECEIVE_BYTES, Poll
from broker_gateway.messaging.stored_message import StoredMessage

WORK = 32_768
"""Queue entries that a search goes through. What else it does counts as so many entries:"""
_A_QUEUE = 512
_A_SKIP = 64
_BYTES_AN_ENTRY = 128
"""Of a message that is read and then passed over."""


class Search:
    """A search of a poll: how much more it may do, and what it found in the queue `begin` named."""

    __slots__ = (
        "body_bytes",
        "handle_queue",
        "key",
        "messages",
        "most_bytes",
        "now",
        "poll",
        "retry",
        "work",
    )
    key: QueueKey
    handle_queue: int
    retry: bool

    def __init__(self, poll: Poll, now: int) -> None:
        self.poll = poll
        self.now = now
        self.work = WORK
        self.messages: list[bytes] = []
        self.body_bytes = 0
        self.most_bytes = RECEIVE_BYTES

    def begin(self, key: QueueKey) -> None:
        self.work -= _A_QUEUE
        self.key = key
        self.handle_queue = handle_queue(key)
        self.retry = self.handle_queue != key.queue_id
        self.most_bytes = RECEIVE_BYTES - self.poll.body_bytes
        self.messages = []
        self.body_bytes = 0

    def room(self, plan: Plan) -> int:
        """How many new messages may be taken from the queue."""
        if self.body_bytes >= self.most_bytes:
            return 0
        left = self.poll.batch_size - len(self.poll.messages) - len(self.messages)
        return min(left, plan.room)

    def skipped(self) -> None:
        """A record could not be read."""
        self.work -= _A_SKIP

    def passed_over(self, size: int) -> None:
        """A record of so many bytes was read that the filter does not want."""
        self.work -= _A_SKIP + size // _BYTES_AN_ENTRY

    def deliver(self, stored: StoredMessage, offset: int, attempt: int, tags_code: int) -> InFlight:
        """Puts a message into what the reply will have."""
        poll = self.poll
        handle = encode_handle(self.handle_queue, offset, poll.delivery_id)
        written = poll.writer.message(stored, poll.topic.name, handle, attempt, poll.invisible_ms)
        return self.add(written, stored.body_length, stored.message_id, offset, attempt, tags_code)

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
