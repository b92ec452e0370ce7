"""Messages that are put off, when a store changes hands: timers, delay levels, halves of transactions.

Neither broker tells the other which of them it has done with. So whoever takes a store over, or hands it back, has what waits
copied to the end of the log, and says that nothing before is put off:

| to | says so by |
|---|---|
| us | `put_off_from` in the journal (`journal/taken_over.py`) |
| a real broker | `timercheck` and `delayOffset.json`, and the offsets of its own group on the topics of halves; its `timerwheel` and `timerlog` are removed |

What waits in a real broker's store, it says in files. Sources: Apache RocketMQ's `TimerCheckpoint`, `TimerMessageStore`,
`DelayOffsetSerializeWrapper`, `TransactionalMessageServiceImpl`.

| of | waits |
|---|---|
| timers | what was not due when the timer last looked, or was behind what it had read of its topic; but for those that were recalled, and those that are in their topic already |
| delay levels | behind the level's offset |
| halves | behind the offset of `CID_RMQ_SYS_TRANS`, but for those that an op record ends, and those that a later copy took the place of |
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broker_gateway.deferred.due_table import offset_of
from broker_gateway.deferred.halves import (
    HALF_TOPIC,
    OP_TOPIC,
    WAITS_FROM_PROPERTY,
    CheckTimes,
    HalfMeaning,
    checks_of,
    renewed,
    taken_over,
)
from broker_gateway.deferred.put_off import (
    DELAY_LEVEL,
    DELIVER_MS,
    OUT_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    RECALL_KEY,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    level_of,
    out_ms,
    real_queue,
)
from broker_gateway.delivery.moves import moved_copy
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.retry_topics import retry_topic
from broker_gateway.journal.replay import records_from
from broker_gateway.lake.put_off import records, waiting
from broker_gateway.lake.reader import Lake
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.migration.rocketmq_files import CONFIG_FOLDER, quoted_keys
from store.counting import counted
from store.delay_levels import DEFAULT_DELAY_LEVELS_MS
from store.errors import RecordError, RecordTooLargeError
from store.log.copies import ORIGIN_PROPERTY, Origin, decode_origin
from store.log.record import PendingRecord, Record, decode_record
from store.log.segment import sync_folder
from store.message_store import MessageStore

TRANSACTIONS_GROUP = "CID_RMQ_SYS_TRANS"
_CHECK = struct.Struct(">4q")
_A_GO = 256


class TimerCheck(NamedTuple):
    """A real broker's `timercheck`: what is due before `looked_ms` it delivered, if it is before `read` in the timer's topic."""

    looked_ms: int = 0
    flushed: int = 0
    read: int = 0
    master_read: int = 0


@dataclass(slots=True)
class PutOffMessages:
    """How many were copied; `problems` names those that could not be."""

    timers: int = 0
    levels: int = 0
    halves: int = 0
    problems: list[str] = field(default_factory=list)


def take_over(
    store: MessageStore,
    root: Path,
    offsets: Mapping[QueueKey, int],
    levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS,
) -> tuple[PutOffMessages, int]:
    """Copies what waits in a real broker's store to the end of the log; how many, and where nothing before is put off.

    `offsets` are consumerOffset.json's. Raises StoreError, OSError; to do it again copies the copies, which then count alone.
    """
    found = PutOffMessages()
    copied = _copied(store)
    waiting = [
        each
        for each in (
            *_waiting_timers(store, _timer_check(root)),
            *_waiting_levels(store, _level_offsets(root), levels_ms),
            *_waiting_halves(store, offsets),
        )
        if _origin(each[0]) not in copied  # by an import before, or by us: that copy waits
    ]
    begin = store.max_offset
    for record, copy in waiting:
        try:
            store.append([copy])
        except (RecordError, RecordTooLargeError) as error:
            found.problems.append(
                f"message {record.queue_offset} of {record.topic} is not taken over, since its copy would be too large: {error}"
            )
            continue
        if record.topic == TIMER_TOPIC:
            found.timers += 1
        elif record.topic == SCHEDULE_TOPIC:
            found.levels += 1
        else:
            found.halves += 1
    return found, begin


def _copied(store: MessageStore) -> set[Origin]:
    """Where copies came from that are put off themselves."""
    texts = (
        record.properties_map().get(ORIGIN_PROPERTY, "")
        for topic in (TIMER_TOPIC, HALF_TOPIC)
        for record in _records(store, topic)
    )
    return {origin for origin in map(decode_origin, texts) if origin is not None and not origin.group}


def hand_back(
    store: MessageStore,
    root: Path,
    timers: Iterable[Record],
    halves: Iterable[Record],
    now_ms: int,
    levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS,
) -> dict[QueueKey, int]:
    """Copies what we have put off to the end of the log, has a real broker begin there, and returns its offsets of halves.

    To be called before check points of POP are written: the timer's topic has them, too. Raises StoreError, OSError.
    """
    check = _timer_check(root)
    waiting = [
        record
        for record in _records(store, TIMER_TOPIC)
        if _is_pop(record.properties_map()) and _not_looked_at(record, record.properties_map(), check)
    ]
    waiting += timers
    read = _at_the_end(store, TIMER_TOPIC, waiting, lambda record: _timer_copy(record, levels_ms))
    half = _at_the_end(store, HALF_TOPIC, list(halves), _half_copy)
    store.flush()
    _write_timer_files(root, TimerCheck(now_ms // 1000 * 1000, 0, read, read))
    _write_level_offsets(root, store)
    return {
        QueueKey(TRANSACTIONS_GROUP, HALF_TOPIC, 0): half,
        QueueKey(TRANSACTIONS_GROUP, OP_TOPIC, 0): store.index.max_offset(OP_TOPIC, 0),
    }


def _at_the_end(
    store: MessageStore, topic: str, waiting: list[Record], copy: Callable[[Record], PendingRecord]
) -> int:
    """Has what waits, and nothing else, stand at the end of a topic; the queue offset from which on it does."""
    end = store.index.max_offset(topic, 0)
    offsets = sorted(record.queue_offset for record in waiting if record.topic == topic)
    if len(offsets) == len(waiting) and offsets == list(range(end - len(offsets), end)):
        return end - len(offsets)
    copies = [copy(record) for record in waiting]
    for start in range(0, len(copies), _A_GO):
        store.append(copies[start : start + _A_GO])
    return end


def take_from_lake(lake: Lake, store: MessageStore) -> tuple[PutOffMessages, int]:
    """Copies what the lake says is put off to the end of the log: the broker lost its disk, or the end of its log. How many, and
    where nothing before is put off. Raises LakeUnreachableError, StoreError, OSError."""
    found = PutOffMessages()
    topics = (TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC)
    offsets = waiting(lake, store.broker, topics, {HALF_TOPIC: OP_TOPIC})
    begin = store.max_offset
    lost = 0
    for (topic, _), _, data in records(lake, store.broker, offsets):
        record = None if data is None else decode_record(data)
        if record is None:
            lost += 1
            continue
        properties = record.properties_map()
        if real_queue(properties) is None or _is_pop(properties) or RECALL_KEY in properties:
            continue
        half = topic == HALF_TOPIC
        copy = renewed(record, _origin(record)) if half else _timer_copy(record, DEFAULT_DELAY_LEVELS_MS)
        store.append([copy])
        if half:
            found.halves += 1
        elif topic == TIMER_TOPIC:
            found.timers += 1
        else:
            found.levels += 1
    if lost:
        found.problems.append(
            f"{counted(lost, 'message')} that {'was' if lost == 1 else 'were'} put off cannot be made again: the lake has no body of "
            f"{'it' if lost == 1 else 'them'}"
        )
    return found, begin


# ----- a real broker's -----


def _waiting_timers(store: MessageStore, check: TimerCheck) -> Iterator[tuple[Record, PendingRecord]]:
    recalled: set[tuple[str, str]] = set()
    rolled: set[tuple[str, str, str]] = set()
    waiting: list[tuple[Record, dict[str, str]]] = []
    for record in reversed(list(_records(store, TIMER_TOPIC))):
        properties = record.properties_map()
        if _is_pop(properties):
            continue
        out, message_id = properties.get(OUT_MS, ""), properties.get("UNIQ_KEY", "")
        if (key := properties.get(RECALL_KEY)) is not None:
            recalled.add((out, key.rpartition("+")[2]))
            continue
        same = message_id, out, properties.get(REAL_TOPIC, "")
        if (out, message_id) in recalled or same in rolled:
            continue
        if "TIMER_ROLL_TIMES" in properties:
            rolled.add(same)
        if _not_looked_at(record, properties, check):
            waiting.append((record, properties))
    delivered = _Delivered(store)
    for record, properties in reversed(waiting):
        if not delivered.has(record, properties):
            yield record, _retargeted(_timer_copy(record, DEFAULT_DELAY_LEVELS_MS), properties)


def _waiting_levels(
    store: MessageStore, offsets: Mapping[int, int], levels_ms: tuple[int, ...]
) -> Iterator[tuple[Record, PendingRecord]]:
    for queue_id in _queues(store, SCHEDULE_TOPIC):
        for _, record in records_from(store, SCHEDULE_TOPIC, queue_id, 0):
            if record.queue_offset >= offsets.get(queue_id + 1, 0):
                yield record, _retargeted(_timer_copy(record, levels_ms), record.properties_map())


def _waiting_halves(
    store: MessageStore, offsets: Mapping[QueueKey, int]
) -> Iterator[tuple[Record, PendingRecord]]:
    meaning = HalfMeaning(CheckTimes(0, 0))
    ended = {offset_of(key) for record in _records(store, OP_TOPIC) for key in meaning.ended(record)}
    done = offsets.get(QueueKey(TRANSACTIONS_GROUP, HALF_TOPIC, 0), 0)
    copies: dict[tuple[str, str, int], int] = {}
    waiting = []
    behind = [record for record in _records(store, HALF_TOPIC) if record.queue_offset >= done]
    for record in reversed(behind):
        properties = record.properties_map()
        same = properties.get("UNIQ_KEY", ""), properties.get(REAL_TOPIC, ""), record.born_timestamp
        checks = checks_of(properties)
        replaced = bool(same[0]) and copies.get(same, -1) > checks
        copies[same] = max(checks, copies.get(same, 0))
        if record.queue_offset not in ended and not replaced:
            waiting.append(record)
    for record in reversed(waiting):
        yield record, taken_over(record, _origin(record))


class _Delivered:
    """What stands in its topic already: the broker was killed before it wrote down that it had looked."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[tuple[str, int], dict[tuple[str, str], int]] = {}

    def has(self, record: Record, properties: Mapping[str, str]) -> bool:
        queue_id = properties.get(REAL_QUEUE, "")
        if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
            return True  # nobody could deliver it
        queue = properties.get(REAL_TOPIC, ""), int(queue_id)
        if queue not in self._known:
            self._known[queue] = {
                (found["UNIQ_KEY"], found[OUT_MS]): at
                for at, each in records_from(self._store, *queue, 0)
                if "UNIQ_KEY" in (found := each.properties_map()) and OUT_MS in found
            }
        at = self._known[queue].get((properties.get("UNIQ_KEY", ""), properties.get(OUT_MS, "")), -1)
        return at > record.physical_offset


def _not_looked_at(record: Record, properties: Mapping[str, str], check: TimerCheck) -> bool:
    out = properties.get(OUT_MS, "")
    due = int(out) if out.isascii() and out.isdigit() and len(out) < 19 else 0
    return due >= check.looked_ms or record.queue_offset >= check.read


def _is_pop(properties: Mapping[str, str]) -> bool:
    return properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX)


def _timer_check(root: Path) -> TimerCheck:
    try:
        return TimerCheck(*_CHECK.unpack_from((root / CONFIG_FOLDER / "timercheck").read_bytes()))
    except (OSError, struct.error):
        return TimerCheck()


def _level_offsets(root: Path) -> dict[int, int]:
    """By level, the queue offset that is delivered next; what is not said is delivered, too many times rather than never."""
    try:
        table = json.loads(quoted_keys((root / CONFIG_FOLDER / "delayOffset.json").read_text()))[
            "offsetTable"
        ]
        return {int(level): int(offset) for level, offset in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


# ----- copies -----


def _timer_copy(record: Record, levels_ms: tuple[int, ...]) -> PendingRecord:
    """A record of the timer's topic with the same time: a level's would begin anew."""
    kept = record.properties_map()
    if record.topic == SCHEDULE_TOPIC:
        due = level_of(record, kept, levels_ms).due
        kept.pop(DELAY_LEVEL, None)
        kept |= {DELIVER_MS: str(due), OUT_MS: str(out_ms(due))}
    kept.pop("TIMER_ROLL_TIMES", None)
    return moved_copy(record, kept, _origin(record), TIMER_TOPIC, 0, record.reconsume_times)


def _half_copy(record: Record) -> PendingRecord:
    """For a real broker, which counts from when a message was born."""
    kept = record.properties_map()
    kept.pop(WAITS_FROM_PROPERTY, None)
    return moved_copy(record, kept, _origin(record), HALF_TOPIC, 0, record.reconsume_times)


def _retargeted(copy: PendingRecord, properties: Mapping[str, str]) -> PendingRecord:
    """What 4.x consumers sent back goes to `%RETRY%<group>`, which nobody receives from here: to that of group and topic."""
    target, topic = properties.get(REAL_TOPIC, ""), properties.get("RETRY_TOPIC", "")
    if target.startswith(RETRY_PREFIX) and topic:
        to = retry_topic(target.removeprefix(RETRY_PREFIX), topic)
        copy.properties = copy.properties.replace(
            f"{REAL_TOPIC}\x01{target}\x02".encode(), f"{REAL_TOPIC}\x01{to}\x02".encode()
        )
    return copy


def _origin(record: Record) -> Origin:
    return Origin(record.queue_id, record.queue_offset, 0, "", record.topic)


def _records(store: MessageStore, topic: str) -> Iterator[Record]:
    return (record for _, record in records_from(store, topic, 0, 0))


def _queues(store: MessageStore, topic: str) -> Iterator[int]:
    return (queue_id for name, queue_id in store.index.queues() if name == topic)


# ----- files of a real broker -----


def _write_timer_files(root: Path, check: TimerCheck) -> None:
    """What the wheel and its log have is in the copies; a real broker makes both anew."""
    folder = root / CONFIG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / "timerlog", ignore_errors=True)
    for path in root.glob("timerwheel*"):
        if path.is_file():
            path.unlink()
    path = folder / "timercheck"
    before = path.read_bytes() if path.exists() else bytes(4096)
    path.write_bytes(_CHECK.pack(*check) + before[_CHECK.size :])
    sync_folder(folder)
    sync_folder(root)


def _write_level_offsets(root: Path, store: MessageStore) -> None:
    table = {
        queue_id + 1: store.index.max_offset(SCHEDULE_TOPIC, queue_id)
        for queue_id in _queues(store, SCHEDULE_TOPIC)
    }
    if not table:
        return
    path = root / CONFIG_FOLDER / "delayOffset.json"
    text = ",".join(f"{level}:{offset}" for level, offset in sorted(table.items()))
    path.write_text(f'{{"offsetTable":{{{text}}}}}\n')
