"""Consume queues as a real broker has them in files."""

from __future__ import annotations

import struct
from pathlib import Path

Unit = tuple[int, int, int]


def units(root: Path, topic: str, queue_id: int) -> dict[int, Unit]:
    found: dict[int, Unit] = {}
    for path in (root / "consumequeue" / topic / str(queue_id)).iterdir():
        for number, unit in enumerate(struct.iter_unpack(">qiq", path.read_bytes())):
            if unit[1]:
                found[int(path.name) // 20 + number] = unit
    return found
