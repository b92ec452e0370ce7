"""A store that begins a new log behind the one it has: what is in it stays, under its former id, and goes on serving consumers.

The new log begins at a segment's start, where a blank has filled up the segment before. So no run of the queue index holds
both, and queue offsets may jump between them. In order, each step durable before the next:

| step | a crash behind it |
|---|---|
| it is known that a new log must begin, and above which offsets its queues go on | nothing has changed: the next start finds it out again |
| `lakebroker.json` has the new id, `own_from` where it begins, the former ids, and `beginning` | the log has its id: no start begins another one for the same loss. What was under the former id ends below `own_from`, whatever follows |
| marks of folders (`owner.py`) have the new id | a mark of a former id is the store's, too; each start mends it |
| the blank | a start that finds the log's end below `own_from` writes it |
| the queues' offsets are raised, and a complete snapshot of the journal that says so is flushed | `beginning` says that it is to be done, before anything is served: all of it again, further up in the new log |
| `lakebroker.json` without `beginning` | it is done |

The id comes before the blank: a log that the blank made as long as the lake says would be taken for whole.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from store.log.recovery import Identity

_FORMER_KEPT = 64
"""Index files and marks that are older are made anew, and refused."""


def begun(identity: Identity, start: int) -> Identity:
    """That of the log that begins at `start`, a segment's."""
    former = (*identity.former_log_ids, identity.log_id)[-_FORMER_KEPT:]
    return replace(identity, log_id=uuid.uuid4().hex, own_from=start, former_log_ids=former, beginning=True)
