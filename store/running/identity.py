"""What a sidecar keeps of the log that it serves, in a folder of its own: which log it is, and how far it was served.

`log.json`, written whole: `{"log_id","broker","created_ms","served",...,"crc32"}`; the CRC-32 is of the other fields as
sorted JSON. `lock` is held by the sidecar that runs.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import asdict
from pathlib import Path

from zlib_ng import zlib_ng

from store.errors import StoreDamagedError
from store.log.permissions import open_new
from store.log.recovery import lock_file
from store.log.segment import make_folder, sync_folder
from store.running.end import Served

STATE_FILE = "log.json"
_CHECK = "crc32"


class SidecarState:
    """The state in `folder`, which is made; locked until `close`. Raises StoreError, OSError."""

    def __init__(self, folder: Path, broker: str) -> None:
        make_folder(folder)
        self._folder = folder
        self._fd = lock_file(
            folder / "lock",
            f"another sidecar has the state folder {folder}; stop it, or give another folder with --state",
        )
        try:
            known = _load(folder / STATE_FILE)
            if known is not None and known["broker"] != broker:
                raise StoreDamagedError(
                    f"the log of {folder} was served as broker {known['broker']!r}, not {broker!r}: a lake knows it by that "
                    "name; give that name, or another state folder with --state"
                )
        except BaseException:
            os.close(self._fd)
            raise
        self.is_new = known is None
        self._fields = known or {
            "log_id": uuid.uuid4().hex,
            "broker": broker,
            "created_ms": time.time_ns() // 1_000_000,
        }
        self.log_id = str(self._fields["log_id"])
        served = self._fields.get("served")
        self.served = Served(**served) if isinstance(served, dict) else None
        if self.is_new:
            self._write()

    def save(self, served: Served) -> None:
        """Keeps how far the log was served. Raises OSError."""
        if served != self.served:
            self.served = served
            self._fields["served"] = asdict(served)
            self._write()

    def close(self) -> None:
        os.close(self._fd)

    def _write(self) -> None:
        staged = self._folder / (STATE_FILE + ".tmp")
        with open_new(staged, "w") as file:
            json.dump({**self._fields, _CHECK: _checksum(self._fields)}, file)
            file.flush()
            os.fsync(file.fileno())
        staged.rename(self._folder / STATE_FILE)
        sync_folder(self._folder)


def _load(path: Path) -> dict[str, object] | None:
    """None where there is none yet. Raises StoreDamagedError."""
    try:
        data = json.loads(path.read_text())
        if data.pop(_CHECK) != _checksum(data):
            raise ValueError(f"its {_CHECK} does not match")
        return {**data, "log_id": str(data["log_id"]), "broker": str(data["broker"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamagedError(
            f"{path} cannot be read ({error}); restore it from a copy, or give another state folder with --state: the log "
            "gets another id then, and a lake keeps it beside the old one"
        ) from error


def _checksum(data: dict[str, object]) -> int:
    return zlib_ng.crc32(json.dumps(data, sort_keys=True).encode())
