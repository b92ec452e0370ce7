"""What the notebooks share: a session over a lake, their parameters, their plots.

from structured_streaming.notebooks import charts, open_lake

lake = open_lake(globals(), "topic")
lake.rows("SELECT * FROM topic_stats WHERE topic = :topic", topic=lake.text("topic"))
"""

from __future__ import annotations

from structured_streaming.notebooks.session import NotebookLake, open_lake

__all__ = ["NotebookLake", "open_lake"]
