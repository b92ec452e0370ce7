"""A lake that holds more of a log than there is: the log lost its end, or is an older copy.

New records would get physical and queue offsets that the lake has rows of already. The reput would pass over them, and retention
would delete their segments as if the lake had them. So the broker does not start on such a log.
"""

from __future__ import annotations

import structlog

from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.runtime.errors import StartError
from store.message_store import MessageStore

log = structlog.get_logger(__name__)


def ahead(dispatched: int, store: MessageStore) -> str:
    """What is wrong when the lake has the log up to `dispatched`; empty when nothing is."""
    if dispatched <= store.max_offset:
        return ""
    return (
        f"the lake has the log {store.log_id} up to {dispatched}, the log ends at {store.max_offset}: its end was lost, or this "
        "is an older copy"
    )


def check_not_ahead(lake: Lake, location: str, store: MessageStore) -> None:
    """Raises StartError when the lake is ahead of the log. A lake that cannot be read now is no reason not to start."""
    try:
        dispatched = lake.dispatched_to(store.broker, store.log_id)
    except LakeUnreachableError as error:
        log.warning("whether the lake is ahead of the log is not known: it cannot be read", error=str(error))
        return
    if wrong := ahead(dispatched, store):
        raise StartError(
            f"{wrong} (lakeLocation={location}, store {store.root}). Restore the newest copy of the store; or give "
            "lakeLocation another, empty lake, to which all that the log still has goes"
        )
