"""What the gateway reads from the lake. `deltalake` is loaded by the first look; call it on a thread."""

from __future__ import annotations

import importlib.util
import json
import threading

from broker_gateway.runtime.errors import StartError
from structured_streaming.errors import LocationError
from structured_streaming.storage.delta_names import LOG, commit_name
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import named_folder

PROGRESS_TABLE = "reput_progress"


class LakeUnreachableError(Exception):
    """The lake could not be read now; the text says why."""


class Lake:
    """The Delta tables in `location`. Raises StartError when deltalake is not installed."""

    def __init__(self, location: str) -> None:
        if importlib.util.find_spec("deltalake") is None:
            raise StartError(
                f"lakeLocation={location} needs the package deltalake; install the extra 'lake' of lakebroker: "
                "pip install '.[lake]' in its source folder"
            )
        try:
            self._folder = named_folder(location)
        except LocationError as error:
            raise StartError(f"lakeLocation={location}: {error}") from error
        if "://" not in location and self._folder.is_file():
            raise StartError(f"lakeLocation={location} is a file; name the lake's folder")
        self._location = location.rstrip("/")
        self._lock = threading.Lock()
        self._progress: _Progress | None = None

    def dispatched_to(self, broker: str, log_id: str) -> int:
        """The physical offset below which every record of that log is in the lake; 0 when there is none.

        It is the version that the progress table keeps for the log, committed after all other tables. In a folder
        the commits that were read are made durable before they are believed: a name that was just linked may be
        gone after a power cut, while the segments it stands for stay deleted. Blocks. Raises LakeUnreachableError.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError

        path = f"{self._location}/{PROGRESS_TABLE}"
        application = f"{broker}/{log_id}"
        with self._lock:
            try:
                if not self._folder.child(PROGRESS_TABLE).exists():
                    return 0
                if self._progress is None or not self._progress.follow():
                    self._progress = _Progress(self._folder.child(PROGRESS_TABLE))
                return self._progress.transaction_version(application)
            except TableNotFoundError:
                self._progress = None
                return 0
            except (DeltaError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._progress = None
                raise LakeUnreachableError(f"{path}: {error}") from error


class _Progress:
    """The progress table in a folder as it was read last: loaded once, then followed commit by commit."""

    def __init__(self, folder: Folder) -> None:
        from deltalake import DeltaTable

        self._log = folder.child(LOG)
        self._table = DeltaTable(folder.uri)
        self._version = self._table.version()
        self._newer: dict[str, int] = {}
        name = commit_name(self._version)
        self._stamp = self._log.stamp(name)
        self._log.make_durable([name])

    def transaction_version(self, application: str) -> int:
        """The newest version that an application gave with its commits, 0 without one."""
        return self._newer.get(application) or self._table.transaction_version(application) or 0

    def follow(self) -> bool:
        """Reads what was committed since; False when this is not the table that was read, or it went on too far.

        What is read is believed once it is on disk. Raises OSError, and what a commit that is none leads to.
        """
        if self._stamp is None or self._stamp != self._log.stamp(commit_name(self._version)):
            return False
        version, newer, last = self._version, dict[str, int](), self._stamp
        while (stamp := self._log.stamp(name := commit_name(version + 1))) is not None:
            for line in self._log.read(name).splitlines():
                transaction = json.loads(line).get("txn")
                if transaction is not None:
                    newer[transaction["appId"]] = transaction["version"]
            version, last = version + 1, stamp
        if version > self._version:
            self._log.make_durable([commit_name(each) for each in range(self._version + 1, version + 1)])
            self._newer |= newer
            self._version, self._stamp = version, last
        return True
