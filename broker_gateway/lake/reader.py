"""What the gateway reads from the lake. `deltalake` is loaded by the first look; call it on a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import structlog

from broker_gateway.runtime.errors import StartError
from structured_streaming.errors import LakeError, LocationError
from structured_streaming.extras import BROKER_LAKE, lacking
from structured_streaming.storage.delta_names import LOG, SPARK_APPLICATION, commit_name
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import named_folder

PROGRESS_TABLE = "reput_progress"


log = structlog.get_logger(__name__)


class LakeUnreachableError(Exception):
    """The lake could not be read now; the text says why."""


class LakeReadStoppedError(Exception):
    """The broker is to stop: what was being read is left. Nothing was changed by the reading."""


def _never() -> bool:
    return False


class Lake:
    """The Delta tables in `location`. Long readings end when `is_stopped`. Raises StartError when deltalake is not installed."""

    def __init__(self, location: str, is_stopped: Callable[[], bool] = _never) -> None:
        if said := lacking(f"lakeLocation={location}", BROKER_LAKE):
            raise StartError(said)
        try:
            self._folder = named_folder(location)
        except LocationError as error:
            raise StartError(f"lakeLocation={location}: {error}") from error
        if "://" not in location and self._folder.is_file():
            raise StartError(f"lakeLocation={location} is a file; name the lake's folder")
        self._is_stopped = is_stopped
        self._location = location.rstrip("/")
        self._lock = threading.Lock()
        self._progress: _Progress | None = None
        self._was_there = False

    @property
    def location(self) -> str:
        """As it is named, without a slash at its end."""
        return self._location

    @property
    def folder(self) -> Folder:
        """Where its tables are."""
        return self._folder

    def go_on(self) -> None:
        """To be called between two parts of a long reading. Raises LakeReadStoppedError."""
        if self._is_stopped():
            raise LakeReadStoppedError

    def brokers(self) -> list[str] | None:
        """Names of the brokers that the lake holds logs of; None where no lake is. Raises LakeUnreachableError."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        from structured_streaming.commit.ends import ends_in_rows

        folder = self._folder.child(PROGRESS_TABLE)
        try:
            if not folder.exists():
                return None
            return sorted({broker for broker, _ in ends_in_rows(folder)})
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise LakeUnreachableError(f"{folder}: {error}") from error

    def dispatched_to(self, broker: str, log_id: str) -> int:
        """The physical offset below which every record of that log is in the lake; 0 when there is none.

        It is what the progress table, committed after all other tables, says of the log. In a folder the commits that were read are made
        durable before they are believed: a name that was just linked may be gone after a power cut, while the segments it stands for stay
        deleted. A lake that this process has seen and that is not there any more, such as where a mount is gone, cannot be read. Blocks.
        Raises LakeUnreachableError.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError

        path = f"{self._location}/{PROGRESS_TABLE}"
        with self._lock:
            try:
                if not self._folder.child(PROGRESS_TABLE).exists():
                    if self._was_there:
                        raise LakeUnreachableError(
                            f"{path} was there and is not any more: mount or restore the lake, or let a reput build it anew from the log"
                        )
                    return 0
                self._was_there = True
                if self._progress is None or not self._progress.follow():
                    self._progress = _Progress(self._folder.child(PROGRESS_TABLE))
                return self._progress.end(broker, log_id)
            except TableNotFoundError:
                self._progress = None
                return 0
            except (DeltaError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._progress = None
                raise LakeUnreachableError(f"{path}: {error}") from error

    def written_to(self, broker: str, log_id: str) -> int:
        """The physical offset up to which any table has rows of that log: above `dispatched_to` where a crash ended a batch
        between two tables. Opens every table's log, and passes over one that cannot be read: what the others say counts.
        Blocks. Raises LakeUnreachableError, LakeReadStoppedError.
        """
        from structured_streaming.commit.table_log import TableLog
        from structured_streaming.tables import DATA_TABLES

        written = self.dispatched_to(broker, log_id)
        for table in DATA_TABLES:
            self.go_on()
            folder = self._folder.child(table.name)
            try:
                if folder.child(LOG).exists():
                    held = TableLog(folder, reads=True).transaction_version(f"{broker}/{log_id}")
                    written = max(written, held or 0)
            except (LakeError, OSError) as error:
                log.warning(
                    "a table of the lake cannot be read: whether it is ahead of the log is not known",
                    table=str(folder),
                    error=str(error),
                )
        return written


class _Progress:
    """The progress table in a folder as it was read last: loaded once, then followed commit by commit."""

    def __init__(self, folder: Folder) -> None:
        from deltalake import DeltaTable

        from structured_streaming.commit.ends import EndsInRows

        self._folder, self._log = folder, folder.child(LOG)
        self._table = DeltaTable(folder.uri)
        self._version = self._table.version()
        self._newer: dict[str, int] = {}
        self._in_rows = EndsInRows(folder)
        name = commit_name(self._version)
        self._stamp = self._log.stamp(name)
        actions = _actions(self._log.read(name)) if self._stamp is not None else []
        self._make_durable([name], actions)

    def transaction_version(self, application: str) -> int:
        """The newest version that an application gave with its commits, 0 without one."""
        return self._newer.get(application) or self._table.transaction_version(application) or 0

    def end(self, broker: str, log_id: str) -> int:
        """Up to where the lake holds a log; from the rows where Spark's writer commits."""
        if not self.transaction_version(SPARK_APPLICATION):
            return self.transaction_version(f"{broker}/{log_id}")
        return self._in_rows.at(self._version).get((broker, log_id), 0)

    def follow(self) -> bool:
        """Reads what was committed since; False when this is not the table that was read, or it went on too far.

        What is read is believed once it is on disk. Raises OSError, and what a commit that is none leads to.
        """
        if self._stamp is None or self._stamp != self._log.stamp(commit_name(self._version)):
            return False
        version, newer, last = self._version, dict[str, int](), self._stamp
        actions: list[dict[str, Any]] = []
        while (stamp := self._log.stamp(name := commit_name(version + 1))) is not None:
            for action in (found := _actions(self._log.read(name))):
                if (transaction := action.get("txn")) is not None:
                    newer[transaction["appId"]] = transaction["version"]
            actions += found
            version, last = version + 1, stamp
        if version > self._version:
            names = [commit_name(each) for each in range(self._version + 1, version + 1)]
            self._make_durable(names, actions)
            self._newer |= newer
            self._version, self._stamp = version, last
        return True

    def _make_durable(self, commits: list[str], actions: list[dict[str, Any]]) -> None:
        """The commits, and before them the files that they add: Spark's writer leaves both to the system."""
        added = [action["add"]["path"] for action in actions if action.get("add") is not None]
        self._folder.make_durable(unquote(path) for path in added if "://" not in path)
        self._log.make_durable(commits)


def _actions(commit: bytes) -> list[dict[str, Any]]:
    """Raises ValueError."""
    return [json.loads(line) for line in commit.splitlines()]
