"""A lake that holds more of a log than there is: the log lost its end, or is an older copy.

New records would get physical and queue offsets that the lake has rows of already. The reput would pass over them, and retention
would delete their segments as if the lake had them. So a start begins a new log then (`app/new_log.py`); while the broker
runs, retention holds.
"""

from __future__ import annotations

from store.message_store import MessageStore


def ahead(dispatched: int, store: MessageStore) -> str:
    """What is wrong when the lake has the log up to `dispatched`; empty when nothing is."""
    if dispatched <= store.max_offset:
        return ""
    return (
        f"the lake has the log {store.log_id} up to {dispatched}, the log ends at {store.max_offset}: its end was lost, or this "
        "is an older copy"
    )
