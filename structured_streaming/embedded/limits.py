"""What a statement of the embedded engine may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one engine, whatever runs in it at a time."""

    memory_bytes: int = 1 << 30
    """What rows and their hash tables take; beyond it they go to the temporary folder."""
    temp_folder: str = ""
    """An existing folder, in which one is made that goes with the engine; else the system's."""
    temp_bytes: int | None = None
    """In the temporary folder; without it half of what is free on its disk."""
    seconds: float = 3600.0
    """Of the engine's work for a statement; 0: without end."""
    threads: int = 0
    """0: as many as the machine has cores."""
