"""The file in which a replay of dead letters keeps what became of each, a JSON line for each time that one was sent or failed:

| member | |
|---|---|
| consumer_group | the group that gave the message up |
| dlq_queue_id, dlq_queue_offset, origin_message_id | where in the group's dead-letter topic it is, and its id before it died |
| topic, outcome, new_message_id | where it was sent to; `sent`, or why not; its id there |

Lines of earlier versions, which called them group, queue, offset and message_id, are read, too.

A line is written when the gateway has answered. A last line that is not whole is one whose writing was cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Literal

from broker_gateway.cli.output import fail, warn
from broker_gateway.runtime.errors import reason

SENT = "sent"
Key = tuple[int, int, str]
"""Queue, offset and message id of a dead letter."""
_MEMBERS = {
    "consumer_group": str,
    "dlq_queue_id": int,
    "dlq_queue_offset": int,
    "origin_message_id": str,
    "outcome": str,
}
_EARLIER = {
    "group": "consumer_group",
    "queue": "dlq_queue_id",
    "offset": "dlq_queue_offset",
    "message_id": "origin_message_id",
}


class Outcomes:
    """Those of one group's replays; without a file, none are kept."""

    def __init__(self, group: str, path: Path | None, file: FileIO | None, sent: set[Key]) -> None:
        self._group = group
        self._path = path
        self._file = file
        self.sent = sent
        """Of the file, when it was opened."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Ends the command when it cannot be kept: what would be sent after it would be sent again."""
        if self._file is None:
            return
        line = json.dumps({"consumer_group": self._group, **row}).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            fail(
                f"the outcome of {row['origin_message_id']} ({row['outcome']}) cannot be written to {self._path}: {reason(error)}; "
                "a replay that resumes sends that message again"
            )


@contextlib.contextmanager
def opened(path: Path | None, group: str, *, resume: bool, dry_run: bool) -> Iterator[Outcomes]:
    """The outcomes of a file, to `resume`, or of a new or empty one; `dry_run` leaves it as it is. Ends the command for a file
    that cannot be used, or that another replay uses."""
    if path is None or (dry_run and not resume and not path.exists()):
        yield Outcomes(group, None, None, set())
        return
    with _open(path, resume, dry_run) as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if dry_run else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"--outcomes {path} is in use by another replay: wait for its end")
        if file.seek(0, os.SEEK_END) and not resume:
            fail(
                f"--outcomes {path} has those of another replay: add --resume to go on with it, or name another file",
                2,
            )
        sent = _sent(file, path, group, cut=not dry_run)
        yield Outcomes(group, path, None if dry_run else file, sent)


def _open(path: Path, resume: bool, dry_run: bool) -> FileIO:
    if resume and not path.exists():
        fail(f"--outcomes {path} is not there: leave --resume out to begin a replay", 2)
    if path.exists() and not path.is_file():
        fail(f"--outcomes {path} is no file: name another", 2)
    mode: Literal["rb", "a+b"] = "rb" if dry_run else "a+b"
    try:
        return path.open(mode, buffering=0)  # what is not written is not kept back either
    except OSError as error:
        fail(f"--outcomes {path} cannot be opened: {reason(error)}; name another file", 2)


def _sent(file: FileIO, path: Path, group: str, *, cut: bool) -> set[Key]:
    """What the lines call sent; `cut`: without a last line that is not whole."""
    file.seek(0)
    found = set()
    whole = 0
    for number, line in enumerate(BufferedReader(FileIO(file.fileno(), closefd=False)), 1):
        if not line.endswith(b"\n"):
            warn([f"the last line of {path} is not whole: its message is sent again"])
            break
        whole += len(line)
        outcome = _outcome(line)
        if outcome is None:
            fail(f"line {number} of {path} is no outcome of a replay; name a file that `dlq replay` wrote", 2)
        if outcome["consumer_group"] != group:
            fail(
                f"{path} is of consumer group {outcome['consumer_group']}, not {group}: name another file", 2
            )
        if outcome["outcome"] == SENT:
            found.add((outcome["dlq_queue_id"], outcome["dlq_queue_offset"], outcome["origin_message_id"]))
    if cut:
        file.truncate(whole)
    return found


def _outcome(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    found = {_EARLIER.get(name, name): value for name, value in found.items()}
    fits = all(isinstance(found.get(name), kind) for name, kind in _MEMBERS.items())
    return found if fits else None
