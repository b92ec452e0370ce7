"""What the gateway reads from the lake. `deltalake` is loaded by the first look; call it on a thread."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

from broker_gateway.errors import StartError

PROGRESS_TABLE = "reput_progress"


class LakeUnreachableError(Exception):
    """The lake could not be read now; the text says why."""


class Lake:
    """The Delta tables in `location`. Raises StartError when deltalake is not installed."""

    def __init__(self, location: str) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise StartError(
                f"lakeLocation={location} needs the package deltalake: pip install 'lakebroker[lake]'"
            )
        if "://" not in location and Path(location).is_file():
            raise StartError(f"lakeLocation={location} is a file; name the lake's folder")
        self._location = location.rstrip("/")
        self._lock = threading.Lock()

    def dispatched_to(self, broker: str, log_id: str) -> int:
        """The physical offset below which every record of that log is in the lake; 0 when there is none.

        It is the version that the progress table keeps for the log, committed after all other tables. Blocks.
        Raises LakeUnreachableError.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        path = f"{self._location}/{PROGRESS_TABLE}"
        if "://" not in path and not Path(path).exists():
            return 0
        with self._lock:
            try:
                version = DeltaTable(path).transaction_version(f"{broker}/{log_id}")
            except TableNotFoundError:
                return 0
            except (DeltaError, OSError) as error:
                raise LakeUnreachableError(f"{path}: {error}") from error
        return version or 0
