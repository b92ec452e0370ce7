"""Which message in flight a receipt handle means, or why it means none; for one handle, or all of a call at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from broker_gateway.delivery.handles import decode_handles
from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey
from broker_gateway.delivery.retry_topics import FORM_BITS, handled_queue, of_lite_topic, subscribed_topic
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError
from broker_gateway.runtime.clock import now_ms
from store.lite_queues import LiteTopic

_WHY = (
    "was not handed out for this topic and group",
    "is void: the message was settled, delivered again, or nobody has it any more",
    "is expired: the invisible duration is over",
)
_FOREIGN, _VOID, _EXPIRED = _REFUSALS = [
    Outcome(Reason.INVALID_RECEIPT_HANDLE, f"the receipt handle {why}") for why in _WHY
]
"""Of entries, which have the handle themselves; each is one object for all of them, so that it is encoded once."""


class Found(NamedTuple):
    """Of the handles of a call: messages by queue, and for each handle how it ends: OK, or why it is refused."""

    messages: Sequence[tuple[QueueDelivery, Sequence[InFlight]]]
    outcomes: Sequence[Outcome]


class Receipts:
    """Reads receipt handles. The second of two equal ones in a call is void."""

    def __init__(self, deliveries: DeliveryTable, clients: ClientRegistry) -> None:
        self._deliveries = deliveries
        self._clients = clients

    def one(
        self, group: str, topic: str, handle: str, lite_topic: str = ""
    ) -> tuple[QueueDelivery, InFlight]:
        """The message, and the queue's state. INVALID_RECEIPT_HANDLE."""
        found = self.all(group, topic, (handle,), lambda: (lite_topic,))
        if not found.messages:
            why = _WHY[_REFUSALS.index(found.outcomes[0])]
            raise ServiceError(Reason.INVALID_RECEIPT_HANDLE, f"receipt handle {shown(handle)} {why}")
        ((state, messages),) = found.messages
        return state, messages[0]

    def all(
        self,
        group: str,
        topic: str,
        handles: Sequence[str],
        lite_topics: Callable[[], Sequence[str]] = tuple,
    ) -> Found:
        """What all handles of a call are good for. `lite_topics` gives the lite topic that the call names with each handle; '' is for
        the one that it was handed out for."""
        now, decoded = now_ms(), decode_handles(handles)
        queue_ids = {each[0] for each in decoded if each is not None}
        queues = self._queues(group, topic, queue_ids)
        if any(map(of_lite_topic, queue_ids)):
            decoded = self._of_lite_topics(group, topic, decoded, lite_topics(), queues)
        outcomes: list[Outcome] = []
        for handle in decoded:
            queue = None if handle is None else queues.get(handle[0])
            if handle is None or queue is None:
                outcomes.append(_FOREIGN)
                continue
            state, some = queue
            _, offset, delivery_id = handle
            message = state.find(offset, delivery_id)
            if message is None or offset in some:
                outcomes.append(_VOID)
            elif message.invisible_until_ms <= now and not self._renewed(message):
                outcomes.append(_EXPIRED)
            else:
                some[offset] = message
                outcomes.append(OK)
        return Found([(state, list(some.values())) for state, some in queues.values() if some], outcomes)

    def _of_lite_topics(
        self,
        group: str,
        topic: str,
        decoded: Sequence[tuple[int, int, int] | None],
        names: Sequence[str],
        queues: dict[int, tuple[QueueDelivery, dict[int, InFlight]]],
    ) -> list[tuple[int, int, int] | None]:
        """The handles, those of lite topics with numbers in place of the queue id; `queues` gets these too."""
        numbers: dict[QueueKey, int] = {}
        found: list[tuple[int, int, int] | None] = []
        for handle, name in zip(decoded, names, strict=True):
            if handle is None or not of_lite_topic(handle[0]):
                found.append(handle)
                continue
            state = self._lite_state(group, topic, name, handle)
            if state is None:
                found.append(None)
                continue
            number = numbers.get(state.key)
            if number is None:
                number = numbers[state.key] = -1 - len(numbers)
                queues[number] = (state, {})
            found.append((number, handle[1], handle[2]))
        return found

    def _lite_state(
        self, group: str, topic: str, name: str, handle: tuple[int, int, int]
    ) -> QueueDelivery | None:
        if name:
            return self._deliveries.known(QueueKey(group, LiteTopic(topic, name).queue, 0))
        number, offset, delivery_id = handle
        states = self._deliveries.lite_states(group, number & ~FORM_BITS)
        some = [state for state in states if subscribed_topic(state.key) == topic]
        holds = (state for state in some if state.find(offset, delivery_id) is not None)
        return next(holds, some[0] if some else None)  # without one that holds it, it is void

    def _queues(
        self, group: str, topic: str, queue_ids: Set[int]
    ) -> dict[int, tuple[QueueDelivery, dict[int, InFlight]]]:
        """By queue id as handles have it, the states that there are, each with a place for its messages."""
        found: dict[int, tuple[QueueDelivery, dict[int, InFlight]]] = {}
        for form in {queue_id & FORM_BITS for queue_id in queue_ids}:
            first = handled_queue(group, topic, form)
            if first.queue_id:  # no form of ours
                continue
            known = self._deliveries.queue_ids(group, first.topic)
            for queue_id in known & {each ^ form for each in queue_ids}:
                state = self._deliveries.known(first._replace(queue_id=queue_id))
                if state is not None:
                    found[form | queue_id] = (state, {})
        return found

    def _renewed(self, message: InFlight) -> bool:
        return message.auto_renew and self._clients.alive(message.client_id, message.host)
