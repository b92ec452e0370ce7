"""Messages whose time has run out go, with the rows that point to them, and nothing else does; whoever commits meanwhile, wherever it
is killed."""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from broker_gateway.metadata.names import JOURNAL_TOPIC
from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.maintenance import left_out, retention
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.maintenance.reports import TableReport
from structured_streaming.maintenance.retention import expire
from structured_streaming.retention_rules import latest, parsed
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.local import LocalFolder
from structured_streaming.upkeep import RETENTION, row
from tests.suite.evidence import LONG, rounds
from tests.support.lakes.aged import WITH_MESSAGES, AgedLake, left_of, place, places
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.dying_calls import DyingCalls

DAY = timedelta(days=1)
DAYS = 5
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> AgedLake:
    made = AgedLake(tmp_path_factory.mktemp("aged"))
    made.write(DAYS)
    return made


@pytest.fixture
def lake(written: AgedLake, tmp_path: Path) -> AgedLake:
    return written.copied(tmp_path / "aged")


def keep(lake: AgedLake, text: str) -> None:
    add_to_upkeep(LocalFolder(lake.lake), row(RETENTION, rules=parsed(text)))


def run(lake: AgedLake, **asked: Any) -> dict[str, TableReport]:
    reports = expire(LocalFolder(lake.lake), lake.now, **asked)
    assert [report.problems for report in reports] == [[]] * len(reports)
    return {report.table: report for report in reports}


def whole_days_ago(now: datetime, days: int) -> datetime:
    return now.replace(hour=0) - days * DAY


def problems(lake: AgedLake) -> list[str]:
    return [each for found in check_lake(str(lake.lake), [str(lake.store)]) for each in found.problems]


def test_what_is_older_than_its_topics_rule_goes_and_nothing_else(lake: AgedLake) -> None:
    assert_exact(lake.lake, lake.store)
    before = lake.all_rows()
    others = {
        name: lake.rows(name) for name in ("consumer_offsets", "delivery_events", "topics", "reput_progress")
    }
    keep(lake, "orders=2d,audit-*=forever,*=4d")
    reports = run(lake)
    now = lake.now
    bounds = {"orders": whole_days_ago(now, 2), "*": whole_days_ago(now, 4), "audit-logins": LONG_AGO}
    left = left_of(before, bounds)
    assert places(lake.all_rows()) == left
    assert 0 < left["messages"].total() < len(before["messages"])
    assert [key for key in left["messages"] if key[0] == "quiet"] == []
    assert sorted(key[1:3] for key in left["consume_queue"] if key[0] == "quiet") == [(0, 0), (3, 1)]
    gone = reports["messages"].retention.topics
    assert {topic: its.rows for topic, its in gone.items()} == {
        topic: sum(row["topic"] == topic for row in before["messages"])
        - sum(count for key, count in left["messages"].items() if key[0] == topic)
        for topic in ("orders", "other", "quiet")
    }
    assert {name: lake.rows(name) for name in others} == others
    assert problems(lake) == []


def test_files_that_hold_nothing_old_stay_as_they_are_and_whole_ones_are_dropped(lake: AgedLake) -> None:
    before = {table: lake.files(table) for table in WITH_MESSAGES}
    keep(lake, "*=3d")
    reports = run(lake)
    bound = whole_days_ago(lake.now, 3)
    for table in ("message_index", "messages"):
        stated = Snapshot(LocalFolder(lake.lake / table)).files.values()
        assert lake.files(table) < before[table], "a file was written, and each day has files of its own"
        assert len(stated) == len(before[table]) * 3 // DAYS
        assert all(
            datetime.fromisoformat(file.statistics["minValues"]["store_timestamp"]) >= bound
            for file in stated
        )
        assert reports[table].retention.rewritten.files == 0
        assert reports[table].retention.dropped.files == len(before[table] - lake.files(table))


def test_a_second_round_commits_nothing_and_opens_nothing(
    lake: AgedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(lake, "orders=2d,*=4d")
    run(lake)
    run(lake)  # files that the first one wrote are as young as that
    versions = {table: lake.version(table) for table in (*WITH_MESSAGES, "upkeep")}
    lake.write(1)
    opened: list[str] = []
    real = retention.parts
    monkeypatch.setattr(retention, "parts", lambda *given: opened.append(given[1].path) or real(*given))
    monkeypatch.setattr(retention, "LATE", -timedelta(days=10_000))  # the files are of now
    lake.days -= 1
    assert not any(report.retention.topics for report in run(lake).values())
    assert opened == []
    assert lake.version("upkeep") == versions["upkeep"]
    assert {table: lake.version(table) - 1 for table in WITH_MESSAGES} == {
        table: versions[table] for table in WITH_MESSAGES
    }


def test_a_dry_run_says_what_would_go_and_changes_nothing(lake: AgedLake) -> None:
    keep(lake, "orders=2d,*=4d")
    versions = {table: lake.version(table) for table in (*WITH_MESSAGES, "upkeep")}
    said = run(lake, dry=True)
    assert {table: lake.version(table) for table in versions} == versions
    bound = whole_days_ago(lake.now, 2)
    sizes = [
        each["size"]
        for each in lake.rows("messages")
        if each["topic"] == "orders" and each["store_timestamp"] < bound
    ]
    done = run(lake)
    for table in WITH_MESSAGES:
        assert said[table].retention == done[table].retention
    its = said["messages"].retention.topics["orders"]
    assert (its.rows, its.bytes) == (len(sizes), sum(sizes))


def test_day_by_day_a_row_is_rewritten_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Files with all topics of four days each, of which one goes after 3 days, one after 6."""
    lake = AgedLake(tmp_path)
    lake.write(1)
    keep(lake, "orders=3d,other=6d")
    written, every = (
        0,
        lambda: sum(file.size for file in Snapshot(LocalFolder(lake.lake / "messages")).files.values()),
    )
    added = every()
    for day in range(rounds(8, 12)):
        before = lake.files("messages")
        lake.write(1)
        sizes = Snapshot(LocalFolder(lake.lake / "messages")).files
        added += sum(file.size for path, file in sizes.items() if path not in before)
        written += run(lake)["messages"].retention.rewritten.bytes
        if day % 4 == 3:
            maintain_merges(lake)
    assert written < 4 * added
    left = {(each["topic"], each["store_timestamp"]) for each in lake.rows("messages")}
    assert min(at for topic, at in left if topic == "orders") >= whole_days_ago(lake.now, 3)
    assert min(at for topic, at in left if topic == "other") >= whole_days_ago(lake.now, 6)
    assert problems(lake) == []


def maintain_merges(lake: AgedLake) -> None:
    """Small files are put together; the time that `maintain` sees is that of the machine, long behind the messages'."""
    from structured_streaming.maintenance.maintain import maintain_table
    from structured_streaming.tables import TABLES

    for table in WITH_MESSAGES:
        report = maintain_table(LocalFolder(lake.lake), TABLES[table], 1 << 20, 86_400)
        assert report.problems == []


def test_messages_that_are_due_later_stay_until_then(tmp_path: Path) -> None:
    lake = AgedLake(tmp_path)
    due = int((lake.now + 5 * DAY).timestamp() * 1000)
    lake.more = [
        {
            "topic": "rmq_sys_wheel_timer",
            "body": b"late",
            "TIMER_OUT_MS": str(due),
            "UNIQ_KEY": "LATE",
            "REAL_TOPIC": "orders",
            "REAL_QID": "0",
        }
    ]
    lake.write(3)
    waits = [each for each in lake.rows("messages") if each["deliver_timestamp"] is not None]
    assert [each["message_id"] for each in waits] == ["LATE"]
    keep(lake, "*=2d")
    before = lake.all_rows()
    run(lake)
    assert places(lake.all_rows()) == left_of(before, {"*": whole_days_ago(lake.now, 2)})
    assert [each["message_id"] for each in lake.rows("messages") if each["deliver_timestamp"]] == ["LATE"]
    lake.write(5)
    run(lake)
    assert [each for each in lake.rows("messages") if each["deliver_timestamp"]] == []
    assert problems(lake) == []


def test_a_queue_that_goes_on_gives_its_former_last_row_away(lake: AgedLake) -> None:
    keep(lake, "*=3d")
    run(lake)
    lake.more = [{"topic": "quiet", "body": b"again", "queue_id": 3, "UNIQ_KEY": "AGAIN"}]
    lake.write(2)
    run(lake)
    quiet = sorted(
        (each["queue_id"], each["queue_offset"])
        for each in lake.rows("consume_queue")
        if each["topic"] == "quiet"
    )
    assert quiet == [(0, 0), (3, 2)]
    assert problems(lake) == []


def test_rules_that_change_count_from_then_on(lake: AgedLake) -> None:
    keep(lake, "orders=4d")
    run(lake)
    keep(lake, "orders=2d,other=3d")
    before = lake.all_rows()
    run(lake)
    now = lake.now
    assert places(lake.all_rows()) == left_of(
        before, {"orders": whole_days_ago(now, 2), "other": whole_days_ago(now, 3)}
    )
    keep(lake, "")
    versions = {table: lake.version(table) for table in WITH_MESSAGES}
    run(lake)
    assert {table: lake.version(table) for table in WITH_MESSAGES} == versions
    assert problems(lake) == [], "what went before is still known"


def test_the_stream_commits_at_every_instant_and_keeps_its_rows(
    lake: AgedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(lake, "orders=2d,*=4d")
    before = lake.all_rows()
    real, beside = TableLog.rewrite, set[str]()

    def rewrite(log: TableLog, *arguments: Any, **named: Any) -> None:
        if (table := str(log.folder)) not in beside:
            beside.add(table)
            lake.write(1)
        real(log, *arguments, **named)

    monkeypatch.setattr(TableLog, "rewrite", rewrite)
    now = lake.now
    reports = expire(LocalFolder(lake.lake), now)
    assert [report.problems for report in reports] == [[], [], []]
    assert len(beside) == len(WITH_MESSAGES)
    bounds = {"orders": whole_days_ago(now, 2), "*": whole_days_ago(now, 4)}
    old, found = left_of(before, bounds), places(lake.all_rows())
    known = places(before)
    for table in WITH_MESSAGES:
        # the last rows of queues that went on meanwhile are there once more
        assert {key: count for key, count in found[table].items() if key in known[table]} == old[table]
        a_day = {"consume_queue": 12 + 3, "message_index": 3 * 12, "messages": 12}[table]
        assert (found[table] - known[table]).total() == len(beside) * a_day
    assert problems(lake) == []


def test_of_two_at_once_one_removes_a_file_and_the_next_round_the_rest(
    lake: AgedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(lake, "orders=2d,*=4d")
    before, real, inner = lake.all_rows(), TableLog.rewrite, []

    def rewrite(log: TableLog, *arguments: Any, **named: Any) -> None:
        if not inner:
            inner.append(None)
            run(lake)
        real(log, *arguments, **named)

    monkeypatch.setattr(TableLog, "rewrite", rewrite)
    outer = expire(LocalFolder(lake.lake), lake.now)
    assert "another maintenance" in outer[0].problems[0]
    bounds = {"orders": whole_days_ago(lake.now, 2), "*": whole_days_ago(lake.now, 4)}
    assert places(lake.all_rows()) == left_of(before, bounds)
    run(lake)
    named = {table: lake.files(table) for table in WITH_MESSAGES}
    assert places(lake.all_rows()) == left_of(before, bounds)
    assert {table: lake.files(table) for table in WITH_MESSAGES} == named


STEPS = ("put_if_absent", "open_new", "remove", "make_durable")


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_step_no_index_row_above_the_bounds_lacks_its_message(
    lake: AgedLake, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintain_merges(lake)
    lake.write(1)
    keep(lake, "orders=3d,*=4d")
    before = lake.all_rows()
    bounds = {"orders": whole_days_ago(lake.now, 3), "*": whole_days_ago(lake.now, 4)}
    dying = DyingCalls(monkeypatch, when, STEPS)
    crashes, looked_at = 0, set[Path]()
    for step in range(1, 400):
        if not dying.kill(step, lambda: expire(LocalFolder(lake.lake), lake.now)):
            break
        crashes += 1
        if (logs := set(lake.lake.glob("*/_delta_log/*"))) == looked_at:
            continue
        looked_at = logs
        rows = lake.all_rows()
        assert_pointed_to(lake, rows)
        assert not left_of(before, bounds)["messages"] - places(rows)["messages"], (
            "a message that is not old is gone"
        )
    assert crashes > 10
    run(lake)
    assert places(lake.all_rows()) == left_of(before, bounds)
    assert problems(lake) == []


def assert_pointed_to(lake: AgedLake, rows: dict[str, list[dict[str, Any]]]) -> None:
    promised = read_upkeep(LocalFolder(lake.lake)).promised
    there = {place(each)[:3] for each in rows["messages"]}
    for table in ("consume_queue", "message_index"):
        for each in rows[table]:
            if each["topic"] == JOURNAL_TOPIC:
                continue  # it has no messages
            bound = latest(promised, each["topic"])
            assert place(each)[:3] in there or (bound is not None and each["store_timestamp"] < bound)


def test_a_file_that_cannot_be_read_keeps_the_tables_behind_it_from_their_turn(lake: AgedLake) -> None:
    keep(lake, "*=4d")
    torn = min((lake.lake / "message_index").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    content = torn.read_bytes()
    torn.write_bytes(content[:-100])
    reports = {report.table: report for report in expire(LocalFolder(lake.lake), lake.now)}
    assert torn.name in reports["message_index"].problems[0]
    assert reports["messages"].retention.topics == {}
    assert read_upkeep(LocalFolder(lake.lake)).expired is None
    torn.write_bytes(content)
    run(lake)
    assert read_upkeep(LocalFolder(lake.lake)).expired is not None
    assert problems(lake) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "cannot be read now"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "it is left as it is"),
    ],
)
def test_a_file_that_the_first_look_alone_cannot_read_keeps_the_ends_of_queues(
    lake: AgedLake, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    keep(lake, "*=3d")
    expected = left_of(lake.all_rows(), {"*": whole_days_ago(lake.now, 3)})
    files = Snapshot(LocalFolder(lake.lake / "consume_queue")).files.values()
    first = min(files, key=lambda file: file.statistics["minValues"]["physical_offset"]).name
    readable, errors = LocalFolder.readable, [error]

    def once(folder: LocalFolder, name: str) -> str:
        if name == first and errors:
            raise errors.pop()
        return readable(folder, name)

    monkeypatch.setattr(LocalFolder, "readable", once)
    reports = {report.table: report for report in expire(LocalFolder(lake.lake), lake.now)}
    (problem,) = reports["consume_queue"].problems
    assert first in problem
    assert said in problem
    run(lake)
    assert places(lake.all_rows()) == expected


def test_maintain_does_it_before_files_are_put_together(lake: AgedLake) -> None:
    """With the machine's clock, to which all of these messages are old or none are."""
    keep(lake, "orders=1d,other=100y")
    reports = {report.table: report for report in maintain(str(lake.lake))}
    age = datetime.now(UTC) - lake.now
    assert (reports["messages"].retention.topics.keys() == {"orders"}) == (age > DAY)
    assert reports["messages"].files_after == 1
    assert {each["topic"] for each in lake.rows("messages")} == {"audit-logins", "other", "quiet"}
    names = [each["operation"] for each in DeltaTable(str(lake.lake / "messages")).history()]
    assert names.index("OPTIMIZE") < names.index("DELETE"), "the newest is first"
    assert problems(lake) == []


def test_batches_that_a_round_looked_at_are_not_looked_at_again(
    lake: AgedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether `consume_queue` was left out of one."""
    folder, looked = LocalFolder(lake.lake), []
    looks = left_out.batch_in

    def lacking(*given: Any) -> int | None:
        looked.append(looks(*given))
        return looked[-1]

    def expired(now: datetime) -> list[int | None]:
        looked.clear()
        assert [report.problems for report in expire(folder, now)] == [[]] * len(WITH_MESSAGES)
        return looked

    monkeypatch.setattr(left_out, "batch_in", lacking)
    keep(lake, "*=1d")
    now = datetime.now(UTC)
    assert set(expired(now)) == {None}
    every = len(lake.files("reput_progress"))
    assert len(looked) == every
    assert len(expired(now + 5 * DAY)) == every, "they were committed lately"
    version = lake.version("reput_progress")
    assert read_upkeep(folder).expired_batches == {"reput_progress": version}
    lake.write(1)
    assert expired(now + 9 * DAY) == []
    keep(lake, "*=2d")
    assert expired(now + 9 * DAY) == []


def test_a_batch_without_consume_queue_keeps_the_ends_of_queues_from_then_on(lake: AgedLake) -> None:
    folder = LocalFolder(lake.lake)
    keep(lake, "*=1d")
    now = datetime.now(UTC)
    expire(folder, now)
    assert lake.rows("messages") == []
    lake.write(1, wanted=Wanted(EVERYTHING.tables - {"consume_queue"}))
    for days in (5, 9):
        expire(folder, now + days * DAY)
        assert len(lake.rows("messages")) == 6, "the last of each queue"
        assert read_upkeep(folder).expired_batches["consume_queue"] == DAYS + 1
