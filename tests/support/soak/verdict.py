"""A ledger of clients against what the log or the lake says: message by message, and the life of those that differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.log_reader import LogReader
from store.scan import scan
from structured_streaming.rows.all_tables import rows_of
from structured_streaming.rows.records import Records
from tests.support.soak.traffic import KINDS, MAX_ATTEMPTS, End, Ledger, Message

TABLES = ("messages", "delivery_events", "consumer_offsets")
GIVEN_UP, TIMERS = "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer"
HALVES, HALVES_DONE = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_DEAD = "%DLQ%"
_LIVES = 5
"""That a failure tells."""
Row = dict[str, Any]
Place = tuple[str, str, int, int]
"""Consumer group, topic, queue, queue offset."""


class View(NamedTuple):
    """Rows of three tables in the order of the log."""

    name: str
    messages: list[Row]
    events: list[Row]
    offsets: list[Row]


def of_log(reader: LogReader) -> View:
    """What the reput would make of a log, up to its readable end."""
    found: dict[str, list[Row]] = {name: [] for name in TABLES}
    for offset, data, _ in reader.read_chunks(reader.min_offset, reader.readable_offset, 16 << 20):
        scanned = scan(data, offset, segment_size=reader.segment_size)
        assert not scanned.bad_reason
        for table, parts in rows_of(Records(reader.broker, reader.log_id, scanned), TABLES):
            for part in parts:
                found[table.name] += part.to_pylist()
    return _view("log", found)


def of_lake(lake: Path) -> View:
    return _view("lake", {name: DeltaTable(lake / name).to_pyarrow_table().to_pylist() for name in TABLES})


def joined(newer: View, older: View) -> View:
    """The rows of both, each once: of a log whose old segments went, and of the lake that has them."""
    found: dict[str, list[Row]] = {}
    for name, *tables in zip(TABLES, newer[1:], older[1:], strict=True):
        by_key = {(row["physical_offset"], row.get("ordinal", 0)): row for rows in tables for row in rows}
        found[name] = list(by_key.values())
    return _view(f"{newer.name} and {older.name}", found)


def _view(name: str, found: Mapping[str, list[Row]]) -> View:
    for rows in found.values():
        rows.sort(key=lambda row: (row["physical_offset"], row.get("ordinal", 0)))
    return View(name, *(found[table] for table in TABLES))


def outstanding(view: View) -> list[tuple[str, str]]:
    """Message ids that something is still to happen to, and what."""
    found = []
    for topic, done in ((HALVES, _halves_done(view)), (TIMERS, _timers_done(view))):
        for row in view.messages:
            recalls = any(name == "TIMER_DEL_UNIQKEY" for name, _ in row["properties"])
            if row["topic"] == topic and not recalls and row["queue_offset"] not in done:
                found.append((row["message_id"], f"waits in {topic}"))
    acked, dead = _acked(view), _dead(view)
    for place, row in _deliverable(view):
        if not acked[place] and place not in dead:
            found.append((row["message_id"], f"{place[0]} has not settled it"))
    return found


def differences(ledger: Ledger, view: View) -> list[tuple[str, str]]:
    """Message ids, and in what the view is not as the ledger says; empty when all is as it was answered."""
    rows: dict[str, list[Row]] = defaultdict(list)
    topics = {kind.topic for kind in KINDS}
    for row in view.messages:
        if row["topic"] in topics or row["topic"] == GIVEN_UP:
            rows[row["message_id"]].append(row)
    found = list(ledger.problems)
    found += [(each, "has a row, and nobody sent it") for each in rows.keys() - ledger.messages.keys()]
    for message in ledger.messages.values():
        found += [(message.id, what) for what in _of_message(message, rows.get(message.id, []))]
    return [
        *found,
        *outstanding(view),
        *_of_deliveries(ledger, view),
        *_of_dead_letters(ledger, view),
        *_of_order(ledger, view),
        *_of_offsets(view),
    ]


def _of_message(message: Message, rows: list[Row]) -> Iterable[str]:
    places = [row["topic"] for row in rows]
    if not rows:
        end = End.GONE
    else:
        end = End.GIVEN_UP if places == [GIVEN_UP] else End.DELIVERED
        if places not in ([GIVEN_UP], [message.kind.topic]):
            yield f"has rows in {places}"
    if end not in message.may_end:
        yield f"ended as {end.name}, it may as {sorted(each.name for each in message.may_end)}"
    for row in rows:
        got = row["body"], row["tag"] or "", row["message_group"] or ""
        if got != (message.body, message.tag, message.message_group):
            yield f"body, tag or message group of its row in {row['topic']} differ"
        if message.due_ms:
            told = round(row["deliver_timestamp"].timestamp() * 1000)
            if told != message.due_ms:
                yield f"is due at {message.due_ms}, its row says {row['deliver_timestamp']}"
            if row["store_timestamp"].timestamp() * 1000 < message.due_ms:
                yield f"went to its queue at {row['store_timestamp']}, before its time"


def _of_deliveries(ledger: Ledger, view: View) -> Iterable[tuple[str, str]]:
    events: Counter[tuple[str, str, str, int]] = Counter(
        (row["event"], row["consumer_group"], row["message_id"], row["attempt"]) for row in view.events
    )
    for (group, message_id), deliveries in ledger.deliveries.items():
        attempts = [attempt for attempt, _ in deliveries]
        if len(set(attempts)) < len(attempts) or max(attempts) > MAX_ATTEMPTS:
            yield message_id, f"was delivered to {group} as attempts {attempts}"
        for attempt in attempts:
            if events["delivered", group, message_id, attempt] != 1:
                yield message_id, f"attempt {attempt} to {group} is not one event in the {view.name}"
        acked = ledger.acked.get((group, message_id))
        if acked is None:
            continue
        if max(attempts) > acked:
            yield message_id, f"was acknowledged by {group} as attempt {acked}, and delivered again"
        if events["acked", group, message_id, acked] != 1:
            yield message_id, f"the acknowledgement of {group} is not one event in the {view.name}"
    acks, dead = _acked(view), _dead(view)
    for place, row in _deliverable(view):
        settled = acks[place] + len(dead.get(place, []))
        if settled > 1:
            yield row["message_id"], f"was settled {settled} times for {place[0]}"


def _of_dead_letters(ledger: Ledger, view: View) -> Iterable[tuple[str, str]]:
    dead = _dead(view)
    originals = dict(_deliverable(view))
    forwarded = set(ledger.forwarded)
    for place, copies in dead.items():
        original = originals.get(place)
        for copy in copies:
            message_id = copy["message_id"]
            forwarded.discard((place[0], message_id))
            if original is None or original["message_id"] != message_id or original["body"] != copy["body"]:
                yield message_id, f"the origin of its dead letter of {place} is another message, or none"
            elif not 1 <= copy["origin"]["attempt"] <= MAX_ATTEMPTS:
                yield message_id, f"its dead letter was attempt {copy['origin']['attempt']}"
    for row in view.messages:
        if row["topic"].startswith(_DEAD) and row["origin"] is None:
            yield row["message_id"], f"its dead letter in {row['topic']} has no origin"
    for group, message_id in forwarded:
        yield message_id, f"{group} gave it up, and there is no dead letter"


def _of_order(ledger: Ledger, view: View) -> Iterable[tuple[str, str]]:
    """Within a message group: rows in the order they were sent, first deliveries and acknowledgements in that of the rows."""
    queue_of: dict[str, int] = {}
    last: dict[tuple[str, ...], int] = {}
    fifo = {kind.topic for kind in KINDS if kind.fifo}
    for row in view.messages:
        message = ledger.messages.get(row["message_id"])
        if row["topic"] not in fifo or message is None:
            continue
        key = message.message_group
        if queue_of.setdefault(key, row["queue_id"]) != row["queue_id"]:
            yield message.id, f"message group {key!r} is in two queues"
        if last.get((key,), -1) > message.number:
            yield message.id, f"message {last[key,]} of its message group came before it, and was sent later"
        last[key,] = message.number
    for event in view.events:
        message = ledger.messages.get(event["message_id"])
        first = event["event"] == "delivered" and event["attempt"] == 1
        if event["topic"] not in fifo or message is None or not (first or event["event"] == "acked"):
            continue
        place = event["consumer_group"], event["event"], message.message_group
        if last.get(place, -1) > event["queue_offset"]:
            yield (
                message.id,
                f"{place[0]}: {event['event']} behind queue offset {last[place]} of its message group",
            )
        last[place] = event["queue_offset"]


def _of_offsets(view: View) -> Iterable[tuple[str, str]]:
    ends: dict[tuple[str, str, int], Row] = {}
    for place, row in _deliverable(view):
        ends[place[:3]] = row
    committed = {
        (row["consumer_group"], row["topic"], row["queue_id"]): row["committed_offset"]
        for row in view.offsets
    }
    for queue, row in ends.items():
        if committed.get(queue) != row["queue_offset"] + 1:
            yield (
                row["message_id"],
                f"is the last of {queue} and settled, the offset there is {committed.get(queue)}, not "
                f"{row['queue_offset'] + 1}",
            )


def _deliverable(view: View) -> Iterable[tuple[Place, Row]]:
    groups = {kind.topic: kind.groups for kind in KINDS}
    for row in view.messages:
        for group in groups.get(row["topic"], ()):
            yield (group, row["topic"], row["queue_id"], row["queue_offset"]), row


def _acked(view: View) -> Counter[Place]:
    return Counter(_place(row) for row in view.events if row["event"] == "acked")


def _place(event: Row) -> Place:
    return event["consumer_group"], event["topic"], event["queue_id"], event["queue_offset"]


def _dead(view: View) -> dict[Place, list[Row]]:
    found: dict[Place, list[Row]] = defaultdict(list)
    for row in view.messages:
        if row["topic"].startswith(_DEAD) and row["origin"] is not None:
            found[_place(row["origin"])].append(row)
    return found


def _halves_done(view: View) -> set[int]:
    bodies = [row["body"].decode() for row in view.messages if row["topic"] == HALVES_DONE]
    return {int(each) for body in bodies for each in body.split(",") if each}


def _timers_done(view: View) -> set[int]:
    origins = [row["origin"] for row in view.messages if row["origin"] is not None]
    return {each["queue_offset"] for each in origins if each["topic"] == TIMERS}


# ----- what a failure prints -----


def told(found: list[tuple[str, str]], ledger: Ledger, *views: View) -> str:
    """All that differs, and the lives of the first messages of it."""
    lines = [f"{len(found)} differences:", *(f"  {message_id}: {what}" for message_id, what in found[:50])]
    for message_id in list(dict.fromkeys(message_id for message_id, _ in found))[:_LIVES]:
        lines += ["", *life(message_id, ledger, *views)]
    return "\n".join(lines)


def life(message_id: str, ledger: Ledger, *views: View) -> list[str]:
    """What happened to a message, in order of time: as clients saw it, and as each view has it."""
    events: list[tuple[float, int, str]] = []
    message = ledger.messages.get(message_id)
    if message is not None:
        events += [(at, 0, f"client  {what}") for at, what in message.events]
    for view in views:
        for row in view.messages:
            if row["message_id"] == message_id:
                where = f"{row['topic']} queue {row['queue_id']} offset {row['queue_offset']}"
                what = f"{view.name:7} at {row['physical_offset']:,}: in {where}, origin {row['origin']}"
                events.append((row["store_timestamp"].timestamp(), 1, what))
        for row in view.events:
            if row["message_id"] == message_id:
                what = (
                    f"{row['event']}, {row['consumer_group']}, attempt {row['attempt']}, {row['client_id']}"
                )
                what = f"{view.name:7} at {row['physical_offset']:,}: {what}"
                events.append((row["event_timestamp"].timestamp(), 1, what))
    kind = (
        "unknown" if message is None else f"{message.kind.name}, number {message.number}, {_shown(message)}"
    )
    return [f"life of {message_id} ({kind})", *(f"  {at:.3f}  {what}" for at, _, what in sorted(events))]


def _shown(message: Message) -> str:
    ends = ", ".join(sorted(each.name for each in message.may_end))
    plan = ""
    if message.kind.type == pb.TRANSACTION:
        plan = f", plan {message.plan}"
    return f"message group {message.message_group!r}, due {message.due_ms}, may end {ends}{plan}"
