"""Everyday questions by name: `message`, `trace`, `lag` and `dlq list`.

Each is asked of a lake (`lake.py`: the embedded engine, over the views), of brokers (`brokers.py`: their calls), or of a lake
and what brokers' logs hold beyond it (the engine's union). What answers is chosen in `asked.py`; rows have the same names
and values whoever answers, and are printed by `rows.py`. What an answerer does not know is None.

| | a lake | brokers alone |
|---|---|---|
| a message | in all topics, by its index; years back | in one topic; back to the beginning of the log, and in the broker's own lake |
| a trace | all that happened | where it was stored; said so |
| lag | when the offset was committed, too | where a group that settled nothing begins, too |
| dead letters | where they were before, why, and after how many attempts, too | |
"""
