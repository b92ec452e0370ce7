"""The data source `lakebroker`.

    spark.dataSource.register(LakebrokerDataSource)
    spark.readStream.format("lakebroker").option("brokers", "host:8081").load()

| option | meaning |
|---|---|
| `store` | folders of stores on this machine, divided by commas |
| `brokers` | `host:port` of gateways, divided by commas; executors connect themselves |
| `tokenFile` | file with the gateways' token |
| `startingOffsets` | `earliest` (default), `latest`, or JSON `{"broker": offset}` |
| `maxBytesPerTrigger` | bytes of log in a micro-batch, of all brokers; default 256 MiB |
| `partitionBytes` | bytes of log in a partition; default 16 MiB |
| `messageDelayLevel` | durations of the brokers' delay levels, as in their configuration: needed with `store` only, gateways say theirs. Without it, when a message with a delay level is due is null |
| `lake` | of the reput: rows are staged as files of this lake's tables, and manifests are what the source emits |

Rows are those of the table `messages`. An offset is `{broker: {"log_id": ID, "offset": N}}`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from store.delay_levels import parse_delay_levels
from structured_streaming.errors import SourceError
from structured_streaming.source.logs import Log, LogState, open_log, targets, token_of
from structured_streaming.tables import MESSAGES

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    ADMISSION_CONTROL = True
except ImportError:  # Spark before 4.2: latestOffset() without arguments, no admission control
    ADMISSION_CONTROL = False
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from structured_streaming.sink.delta_commit import LakeProgress

MAX_BYTES_PER_TRIGGER = 256 << 20
PARTITION_BYTES = 16 << 20
_IDLE_WAIT_MS = 250
_UNREACHABLE_WAIT_S = 1.0
Offsets = dict[str, dict[str, Any]]


@dataclass
class LogRange(InputPartition):
    """Record-aligned bytes [start, end) of a log; `delay_levels` as in `LogState`."""

    target: str
    broker: str
    log_id: str
    start: int
    end: int
    log_end: int
    delay_levels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__init__(None)


class _Options:
    """The options, validated. Raises SourceError."""

    def __init__(self, options: dict[str, str]) -> None:
        self.raw = {key.lower(): value for key, value in options.items()}
        self.targets = targets(self.raw)
        self.token = token_of(self.raw)
        self.max_bytes = self._number("maxbytespertrigger", MAX_BYTES_PER_TRIGGER)
        self.partition_bytes = self._number("partitionbytes", PARTITION_BYTES)
        self.lake = self.raw.get("lake", "")
        self.starting = self.raw.get("startingoffsets", "earliest")
        self.delay_levels = self._delay_levels()

    def _number(self, name: str, default: int) -> int:
        text = self.raw.get(name, str(default))
        if not text.isdigit() or int(text) < 1024:
            raise SourceError(f"option {name}={text} is not a number of bytes of at least 1024")
        return int(text)

    def _delay_levels(self) -> tuple[int, ...] | None:
        text = self.raw.get("messagedelaylevel", "")
        try:
            return parse_delay_levels(text) if text else None
        except ValueError as error:
            raise SourceError(f"option messageDelayLevel={text}: {error}") from error


class LakebrokerDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "lakebroker"

    def schema(self) -> StructType:
        if "lake" in {key.lower() for key in self.options}:
            from structured_streaming.sink.staging import MANIFEST

            return from_arrow_schema(MANIFEST)
        return from_arrow_schema(MESSAGES.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogBatchReader(_Options(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LogStreamReader(_Options(dict(self.options)))


class _Reading:
    """What batch and stream readers share: states of the logs, ranges, and reading a range."""

    def __init__(self, options: _Options) -> None:
        self.options = options
        self._logs: dict[str, Log] = {}

    def log(self, target: str) -> Log:
        """The log at a target, opened once."""
        if target not in self._logs:
            self._logs[target] = open_log(target, self.options.token)
        return self._logs[target]

    def __getstate__(self) -> dict[str, Any]:
        """What executors need to read a range; what the driver knows of lake and logs stays there."""
        return {"options": self.options, "_logs": {}}

    def states(
        self, wait_ms: int = 0, after: dict[str, int] | None = None
    ) -> dict[str, tuple[str, LogState]]:
        """Target and state by broker. A log that cannot be reached is left out unless none can."""
        found: dict[str, tuple[str, LogState]] = {}
        errors = []
        for target in self.options.targets:
            try:
                state = self.log(target).describe(wait_ms, (after or {}).get(target, -1))
            except SourceError as error:
                errors.append(str(error))
                continue
            if state.broker in found:
                raise SourceError(
                    f"{target} and {found[state.broker][0]} are both broker {state.broker!r}; rename one"
                )
            found[state.broker] = (target, state)
        if not found:
            raise SourceError("; ".join(errors))
        return found

    def ranges(self, target: str, state: LogState, start: int, end: int) -> list[LogRange]:
        if start >= end:
            return []
        cuts = self.log(target).split(state.log_id, start, end, self.options.partition_bytes)
        levels = state.delay_levels or self.options.delay_levels
        return [
            LogRange(target, state.broker, state.log_id, a, b, state.end, levels)
            for a, b in itertools.pairwise(cuts)
        ]

    def read(self, partition: LogRange) -> Iterator[pa.RecordBatch]:
        chunks = self.log(partition.target).read(partition.log_id, partition.start, partition.end)
        if self.options.lake:
            from structured_streaming.sink.staging import stage

            yield from stage(self.options.lake, partition, chunks)
            return
        from store.scan import scan
        from structured_streaming.rows.messages import message_batches
        from structured_streaming.rows.pieces import Piece

        for offset, data in chunks:
            found = scan(data, offset)
            yield from message_batches(
                Piece(partition.broker, partition.log_id, partition.delay_levels, found)
            )


class LogBatchReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """Everything in the logs at the time of the query."""

    def partitions(self) -> Sequence[LogRange]:
        return [
            part
            for target, state in self.states().values()
            for part in self.ranges(target, state, state.start, state.end)
        ]


class LogStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Micro-batches of the logs.

    With `lake`, the lake's progress says where to begin. Tables ahead of it (a crash between two of their
    commits) are caught up with by first batches that end exactly where one of them stands.
    """

    def __init__(self, options: _Options) -> None:
        super().__init__(options)
        self._stops: dict[tuple[str, str], list[int]] = {}
        self._until: dict[str, int] | None = None
        self._states: dict[str, tuple[str, LogState]] = {}
        self._progress: LakeProgress | None = None
        if options.lake:
            from structured_streaming.sink.delta_commit import LakeProgress

            self._progress = LakeProgress(options.lake)

    def initialOffset(self) -> Offsets:
        self._states = self.states()
        return {
            broker: {"log_id": state.log_id, "offset": self._first(state)}
            for broker, (_, state) in self._states.items()
        }

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:
        return self._latest(start if start is not None else {}, limit)

    if ADMISSION_CONTROL:

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxBytes(self.options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._states = self.states()
        self._until = {broker: state.end for broker, (_, state) in self._states.items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[LogRange]:
        found = []
        for broker, to in end.items():
            target, state = self._state(broker, to["log_id"])
            begin = start.get(broker)
            first = (
                begin["offset"]
                if begin is not None and begin["log_id"] == to["log_id"]
                else self._first(state)
            )
            found += self.ranges(target, state, first, to["offset"])
        return found

    def commit(self, end: Offsets) -> None:
        """The lake's progress counts, not this."""

    def _latest(self, start: Offsets, limit: Any) -> Offsets:
        try:
            states = self.states()
        except SourceError as error:
            if not start:
                raise
            sys.stderr.write(f"lakebroker: {error}; trying again\n")
            time.sleep(_UNREACHABLE_WAIT_S)
            return start
        if start and all(
            state.end <= start.get(broker, {}).get("offset", -1) for broker, (_, state) in states.items()
        ):
            if len(states) == 1:
                ((target, state),) = states.values()
                states = self.states(_IDLE_WAIT_MS, {target: state.end})
            if len(states) > 1 or target.startswith("store:"):
                time.sleep(_IDLE_WAIT_MS / 5000)
        self._states |= states
        room = self.options.max_bytes
        if ADMISSION_CONTROL and isinstance(limit, ReadAllAvailable):
            room = 1 << 62
        latest: Offsets = {broker: dict(value) for broker, value in start.items()}
        for broker, (target, state) in states.items():
            known = start.get(broker)
            first = (
                known["offset"]
                if known is not None and known["log_id"] == state.log_id
                else self._first(state)
            )
            end = min(state.end, (self._until or {}).get(broker, state.end))
            fence = self._fence(state, first)
            if first < fence:
                end = fence
            elif self._fenced(start, states):
                end = first  # others catch up first: a batch ends exactly where their tables stand
            elif end - first > room:
                cuts = self.log(target).split(state.log_id, first, end, max(room, 1024))
                end = cuts[1]
            end = max(end, first)
            room = max(room - (end - first), 0)
            latest[broker] = {"log_id": state.log_id, "offset": end}
        return latest

    def _fenced(self, start: Offsets, states: dict[str, tuple[str, LogState]]) -> bool:
        """Whether some broker's tables are ahead of its progress still."""
        for broker, (_, state) in states.items():
            known = start.get(broker)
            first = (
                known["offset"]
                if known is not None and known["log_id"] == state.log_id
                else self._first(state)
            )
            if first < self._fence(state, first):
                return True
        return False

    def _fence(self, state: LogState, first: int) -> int:
        """The next offset at which some table stands ahead of the lake's progress; -1 without one."""
        key = (state.broker, state.log_id)
        if key not in self._stops:
            self._stops[key] = self._progress.stops(*key) if self._progress is not None else []
        return next((stop for stop in self._stops[key] if stop > first), -1)

    def _first(self, state: LogState) -> int:
        """Where a log that no offset names yet begins."""
        known = None
        if self._progress is not None:
            known = self._progress.offsets.get((state.broker, state.log_id))
        if known is not None:
            if known > state.end:
                raise SourceError(
                    f"the lake holds broker {state.broker} up to offset {known}, its log {state.log_id} ends at "
                    f"{state.end}: data were lost or are another log's; start the gateway with the lake's location"
                )
            if known < state.start:
                raise SourceError(
                    f"the log of broker {state.broker} begins at {state.start}, the lake holds it up to {known}: "
                    f"{state.start - known} bytes are gone; restore the segments to go on without a gap"
                )
            return known
        if self.options.lake or self.options.starting == "earliest":
            return state.start
        if self.options.starting == "latest":
            return state.end
        try:
            return int(json.loads(self.options.starting).get(state.broker, state.start))
        except (ValueError, AttributeError, TypeError) as error:
            raise SourceError(
                f"option startingOffsets={self.options.starting}: give earliest, latest or JSON by broker"
            ) from error

    def _state(self, broker: str, log_id: str) -> tuple[str, LogState]:
        known = self._states.get(broker)
        if known is None or known[1].log_id != log_id:
            self._states |= self.states()
            known = self._states.get(broker)
        if known is None or known[1].log_id != log_id:
            raise SourceError(f"log {log_id} of broker {broker} cannot be reached now; start its gateway")
        return known
