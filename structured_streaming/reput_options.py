"""What a run of the reput is to read, and whether it did."""

from __future__ import annotations

import json
from dataclasses import dataclass

from structured_streaming.commit.delta_commit import LakeProgress
from structured_streaming.errors import (
    SourceError,
)
from structured_streaming.source.log_watch import LogWatch
from structured_streaming.source.logs import by_broker, targets, token_of
from structured_streaming.staging.wanted import Wanted, wanted
from structured_streaming.storage.location import absolute

ANSWER_S = 60.0
"""What the logs' answers may take at the start of a run that ends by itself."""


@dataclass(frozen=True, slots=True)
class ReputOptions:
    """What to read and where to. `trigger` is Spark's processing time; `once` ends when all is read.

    A batch begins when what it reads is about to become older than `target_freshness_s` seconds (0: at once), or has
    `target_file_size` bytes. `tables` and `without_bodies` are as in `staging/wanted.py`, `on_gap` as in `reput_source.py`.
    `message_delay_level` is that of the brokers whose stores are read by path.
    """

    lake: str
    store: str = ""
    brokers: str = ""
    token_file: str = ""
    trigger: str = "0 seconds"
    target_freshness_s: float = 1.0
    target_file_size: int = 64 << 20
    once: bool = False
    max_bytes: int = 256 << 20
    partition_bytes: int = 16 << 20
    message_delay_level: str = ""
    tables: str = ""
    without_bodies: str = ""
    on_gap: str = ""

    @property
    def wanted(self) -> Wanted:
        """What goes into the lake. Raises SourceError."""
        return wanted({name.lower(): value for name, value in self.source().items()})

    def source(self) -> dict[str, str]:
        """Options of the data source."""
        options = {
            "lake": absolute(self.lake),
            "store": self.store,
            "brokers": self.brokers,
            "tokenFile": self.token_file,
            "maxBytesPerTrigger": str(self.max_bytes),
            "targetFreshness": str(self.target_freshness_s),
            "targetFileSize": str(self.target_file_size),
            "partitionBytes": str(self.partition_bytes),
            "messageDelayLevel": self.message_delay_level,
            "tables": self.tables,
            "withoutBodies": self.without_bodies,
            "onGap": self.on_gap,
        }
        return {name: value for name, value in options.items() if value}


class Goal:
    """What a run that ends by itself has to read: the logs' ends at its start. Raises SourceError.

    Who does not answer is not told here: the run ends with it, or its source tells.
    """

    def __init__(self, options: ReputOptions) -> None:
        named = {name.lower(): value for name, value in options.source().items()}
        watch = LogWatch(targets(named), token_of(named), lambda text: None, ANSWER_S)
        self._lake = options.lake
        self._states = watch.states()
        self._missing = watch.missing()
        if not self._states:
            raise SourceError("; ".join(self._missing.values()))
        by_broker(self._states)

    @property
    def ends(self) -> str:
        """The option `endingOffsets`."""
        return json.dumps({state.broker: state.end for state in self._states.values()})

    def lacking(self) -> list[str]:
        """What the lake does not hold of it."""
        progress, lacking = LakeProgress(self._lake), list(self._missing.values())
        for target, state in self._states.items():
            reached = progress.position(state.broker, state.log_id)
            begin = state.start if reached is None else reached
            if begin < state.end:
                lacking.append(
                    f"of {target} the lake holds what is below {begin}, it ended at {state.end} at the start"
                )
        return lacking


def check_present(options: ReputOptions) -> None:
    """Raises SourceError unless one of the logs answers, and no two are of one broker."""
    Goal(options)
