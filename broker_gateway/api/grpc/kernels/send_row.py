"""Columns that the compiled walk of a send fills beyond those of the log, and the limits it is given."""

from __future__ import annotations

from store.columns import COLUMNS

MESSAGE_ID_START, MESSAGE_ID_LENGTH, TOPIC_START, TOPIC_LENGTH, ROW = range(COLUMNS, COLUMNS + 5)
"""Positions in the request. TOPIC is the message's Resource."""

BODY_LIMIT, PROPERTIES_COUNT, PROPERTIES_BYTES, RECORD_PROPERTIES, REFUSE_EMPTY, NOW, LIMITS = range(7)
"""`RECORD_PROPERTIES`: bytes of all properties of a record but the broker's. `NOW`: ms since the epoch, for messages
that do not say when they were born."""

UNUSUAL = -1
