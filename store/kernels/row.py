"""Columns of the rows that the compiled walk fills, and why it stopped. Apart from it, so that who only reads
rows need not load the compiler."""

from __future__ import annotations

(
    POSITION,
    SIZE,
    BODY_CRC,
    QUEUE_ID,
    FLAG,
    QUEUE_OFFSET,
    SYS_FLAG,
    BORN_TIMESTAMP,
    BORN_HOST_START,
    STORE_TIMESTAMP,
    STORE_HOST_START,
    RECONSUME_TIMES,
    PREPARED_OFFSET,
    BODY_START,
    BODY_LENGTH,
    TOPIC_START,
    TOPIC_LENGTH,
    PROPERTIES_START,
    PROPERTIES_LENGTH,
    TAGS_CODE,
    CRC_EXPECTED,
    COLUMNS,
) = range(22)

END, FULL, ZERO, TORN, BAD_HEADER, GOOD, BLANK = range(7)
