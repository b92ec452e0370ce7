"""The other brokers with queues of FIFO and LITE topics, in a file of the store: a broker that starts while one of them is away
knows of it, as those do that ran (`ordered_sends.py`).

Who is in the file counts as running at the start. Whoever does not come back is out of it after `lakeOrderedBrokerAbsence`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import structlog
from pydantic import Field, TypeAdapter, ValidationError

from broker_gateway.runtime.files import write_whole

log = structlog.get_logger(__name__)
FILE = Path("lakeordered", "brokers.json")

Placed = dict[str, dict[str, int]]
"""How many queues each broker has, by topic and broker."""
_PLACED = TypeAdapter(dict[str, dict[str, Annotated[int, Field(ge=1, le=1 << 16)]]])


class PlacedBrokers:
    """The file of the store in a folder."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE
        self._saved: Placed | None = None

    def load(self) -> Placed:
        """What the file says; nothing without one, or with one that cannot be read, which is logged."""
        try:
            self._saved = _PLACED.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValidationError) as error:
            log.warning(
                "the file of brokers with ordered queues cannot be read; those that are away now are not waited for",
                file=str(self._path),
                error=str(error),
            )
        return self._saved or {}

    def differs(self, placed: Placed) -> bool:
        """Whether the file says something else."""
        return placed != (self._saved or {})

    def save(self, placed: Placed) -> None:
        """Writes the file. To be called on a thread. Raises OSError."""
        write_whole(self._path, _PLACED.dump_json(placed, indent=1).decode())
        self._saved = placed
