"""What a run of the reput is to read, and whether it did."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from structured_streaming.errors import (
    SourceError,
)
from structured_streaming.registry.access import NOTHING, RegistryAccess
from structured_streaming.source.access import Access, access_of, token_file_for
from structured_streaming.source.log_watch import LogWatch
from structured_streaming.source.logs import by_broker, open_log, targets
from structured_streaming.source.membership import Membership
from structured_streaming.source.name_servers import name_servers
from structured_streaming.source.options import PARTITION_BYTES
from structured_streaming.staging.wanted import Wanted, wanted
from structured_streaming.storage.location import absolute

ANSWER_S = 60.0
"""What the logs' answers may take at the start of a run that ends by itself."""
FIRST_ANSWER_S = 3.0
"""What the others may take at the start once one answered."""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class ReputOptions:
    """What to read and where to. `trigger` is Spark's processing time; `once` ends when all is read.

    A batch begins when what it reads is about to become older than `target_freshness_s` seconds (0: at once), or has
    `target_file_size` bytes. `tables` and `without_bodies` are as in `staging/wanted.py`, `on_gap` as in `reput_source.py`,
    `careful` in `staging/careful.py`.
    `sink` is `delta` or `spark`, empty: as the location says; `staging` a folder for files on their way to Spark's writer.
    `namesrv` is in the place of `brokers`. `token_file` and `tls_ca` are files on the driver. `message_delay_level` is that of the
    brokers whose stores are read by path. `registry`: how those of typed topics are spoken to, by the driver alone.
    """

    lake: str
    store: str = ""
    brokers: str = ""
    namesrv: str = ""
    token_file: str = ""
    tls_ca: str = ""
    trigger: str = "0 seconds"
    target_freshness_s: float = 1.0
    target_file_size: int = 64 << 20
    once: bool = False
    max_bytes: int = 256 << 20
    partition_bytes: int = PARTITION_BYTES
    message_delay_level: str = ""
    tables: str = ""
    without_bodies: str = ""
    on_gap: str = ""
    careful: bool = False
    sink: str = ""
    staging: str = ""
    registry: RegistryAccess = NOTHING

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
            "namesrv": self.namesrv,
            "tokenFile": self.token_file,
            "tlsCa": self.tls_ca,
            "maxBytesPerTrigger": str(self.max_bytes),
            "targetFreshness": str(self.target_freshness_s),
            "targetFileSize": str(self.target_file_size),
            "partitionBytes": str(self.partition_bytes),
            "messageDelayLevel": self.message_delay_level,
            "tables": self.tables,
            "withoutBodies": self.without_bodies,
            "onGap": self.on_gap,
            "careful": "true" if self.careful else "",
        }
        return {name: value for name, value in options.items() if value}

    @property
    def access(self) -> Access:
        """How gateways are spoken to, by the files as they are now. Raises SourceError."""
        return access_of(self._named)

    def token_file_in(self, folder: str) -> dict[str, str]:
        """The option of the data source that hands on the environment's token, if that is the one. Raises SourceError."""
        return token_file_for(self._named, lambda: folder)

    @property
    def targets(self) -> list[str]:
        """What is named, without what name servers know. Raises SourceError."""
        return targets(self._named)

    @property
    def name_servers(self) -> list[str]:
        """Raises SourceError."""
        return name_servers(self._named)

    @property
    def _named(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.source().items()}


def checked(options: ReputOptions) -> ReputOptions:
    """The options, once the logs were asked; of a run that ends by itself, with the brokers that name servers know now.

    Raises SourceError for what no later try mends (a folder that is no store, an address without a port, a wrong token, a
    certificate that is not trusted, two logs of one broker, a table that there is not), and when nobody answers.
    """
    _ = options.wanted
    options.registry.check()
    for target in options.targets:
        if target.startswith("store:"):
            log = open_log(target, Access())
            log.describe()
            log.close()
    watch = _watched(options, FIRST_ANSWER_S)
    try:
        _check(watch)
        brokers = [each.partition(":")[2] for each in watch.targets if each.startswith("broker:")]
    finally:
        watch.close()
    return replace(options, brokers=",".join(brokers), namesrv="") if options.once else options


def _watched(options: ReputOptions, patience_s: float) -> LogWatch:
    """All logs that there are now; the caller closes it. Raises SourceError."""
    watch = LogWatch(options.targets, options.access, _ignored, patience_s)
    Membership(options.name_servers, watch, _ignored, fixed=True).update()
    return watch


def _ignored(_note: str) -> None:
    """The query's own source tells."""


def _check(watch: LogWatch) -> None:
    """Raises SourceError."""
    until = time.monotonic() + ANSWER_S
    states = watch.states()
    while not states and watch.unanswered and time.monotonic() < until:
        time.sleep(_LOOK_S)
        states = watch.states()
    if refused := watch.refused:
        raise SourceError("; ".join(refused))
    if not states:
        raise watch.nobody()
    by_broker(states)


class Goal:
    """What a run that ends by itself has to read: the logs' ends at its start. Raises SourceError.

    Who does not answer is not told here: the run ends with it, or its source tells.
    """

    def __init__(self, options: ReputOptions) -> None:
        watch = _watched(options, ANSWER_S)
        self._states = watch.states()
        self._missing = watch.missing()
        watch.close()
        if not self._states:
            raise watch.nobody()
        by_broker(self._states)

    @property
    def ends(self) -> str:
        """The option `endingOffsets`."""
        return json.dumps({state.broker: state.end for state in self._states.values()})

    def lacking(self, held: Mapping[tuple[str, str], int]) -> list[str]:
        """What the lake does not hold of it; `held`: up to where it holds each log, by broker and log_id."""
        lacking = list(self._missing.values())
        for target, state in self._states.items():
            reached = held.get((state.broker, state.log_id))
            begin = state.start if reached is None else reached
            if begin > state.end:
                lacking.append(f"the lake is ahead of {target}, which ends at {state.end}: it holds {begin}")
            elif begin < state.end:
                lacking.append(
                    f"of {target} the lake holds what is below {begin}, it ended at {state.end} at the start"
                )
        return lacking
