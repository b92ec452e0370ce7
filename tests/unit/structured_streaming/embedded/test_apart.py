"""The engine in a process of its own answers as the one in this process, and what ends its process ends nothing else."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import duckdb
import pytest

from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.typed_tables import declare
from structured_streaming.embedded.apart import EngineApart, EngineEndedError
from structured_streaming.embedded.database import connected
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.running import Running, Watch
from structured_streaming.embedded.worker import Call
from structured_streaming.errors import LakeError, LocationError, ReadOnlyError
from structured_streaming.scratch import SQL, remove_scratch, scratch_folder
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.suite.evidence import LONG
from tests.suite.patience import FACTOR
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.waiting import LIMIT_S, wait_until

MEMORY = 128 << 20
HUGE = (
    "SELECT repeat('x', 3000000000)",
    "SELECT length(repeat('x', 10000000000))",
    "SELECT len(range(300000000))",
    pytest.param("SELECT max(length(repeat('x', 10000000 + i))) FROM range(2000) t(i)", marks=LONG),
    "SELECT string_agg(repeat('x', 1000000 + i), '') FROM range(4000) t(i)",
    "SELECT list(i) FROM range(100000000) t(i)",
    "SELECT list(repeat(topic, 100000)) FROM messages, range(1000)",
    "WITH RECURSIVE r(n, x) AS (SELECT 1, 'x' UNION ALL SELECT n + 1, x || x FROM r WHERE n < 33) SELECT max(x) FROM r",
)
DOUBLED = (
    "WITH c0 AS (SELECT * FROM messages), "
    + ", ".join(f"c{at} AS (SELECT * FROM c{at - 1} a, c{at - 1} b)" for at in range(1, 24))
    + " SELECT * FROM c23"
)
"""Its plan has so many columns that no machine holds them, and looks for no interrupt meanwhile."""


HASTY_S = 0.5 * FACTOR
HASTY = """
import os, sys

if "structured_streaming.embedded.worker" in sys.orig_argv:
    import duckdb
    from structured_streaming.embedded import engine, planning, running

    running.PATIENCE_S = float(os.environ["HASTY_S"])

    def connected(*, delta=False, before=engine.connected):
        if delta:
            return before(delta=True)
        os.mkdir(os.environ["DATABASE"] + str(os.getpid()))
        database = duckdb.connect(os.environ["DATABASE"] + str(os.getpid()) + "/memory.db")
        database.execute("SET debug_checkpoint_abort = 'before_truncate'")
        return database

    def plan(planner, running, statement, parameters=(), before=planning.Planner.plan):
        if "'fatal'" in statement:
            with running.working():
                running.cursor.execute("FORCE CHECKPOINT")
        return before(planner, running, statement, parameters)

    if "DATABASE" in os.environ:
        engine.connected, planning.Planner.plan = connected, plan
"""
"""Has processes of the engine end `HASTY_S` after a statement that goes on; with `DATABASE`, they meet a fatal error of DuckDB's
own in a statement that says so."""


@pytest.fixture(scope="module")
def lasting_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lasting")
    with LogWriter(folder / "store") as writer:
        writer.messages(80)
    lake = empty_lake(str(folder / "lake")).path
    commit(lake, manifest(lake, writer.folder, *cuts(writer.folder, 1)))
    return lake


@pytest.fixture(scope="module")
def lasting(lasting_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineApart]:
    """One engine for all: each test finds what those before it left, and leaves a process that answers or is ended."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(HASTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(site), *sys.path)))
        patch.setenv("HASTY_S", str(HASTY_S))
        with EngineApart.open(str(lasting_lake), Limits(memory_bytes=MEMORY)) as engine:
            yield engine


@pytest.fixture
def apart(lasting: EngineApart) -> EngineApart:
    assert lasting.query("SELECT 42 AS x").read_all().num_rows == 1, "where it ended, another one is started"
    return lasting


@pytest.fixture
def pipe(lasting_lake: Path) -> Iterator[Path]:
    """The log of a table that whoever reads it waits for, as an object store that hangs."""
    log = lasting_lake / "typed_hangs" / "_delta_log"
    log.mkdir(parents=True)
    os.mkfifo(log / f"{0:020}.json")
    yield log
    shutil.rmtree(log.parent)


def asked(pool: ThreadPoolExecutor, ask: Callable[[], object]) -> Future[str]:
    """What a call fails with, which is asked in another thread."""

    def failure() -> str:
        with pytest.raises(LakeError) as failed:
            ask()
        return str(failed.value)

    return pool.submit(failure)


def cancelled(watch: Watch, failing: Future[str]) -> str:
    """What a call fails with that is cancelled again and again, whether it was begun by then or not."""
    wait_until(lambda: watch.cancel() or failing.done())
    return failing.result()


def killed(engine: EngineApart) -> int:
    """The process that it had."""
    pid = engine.pid
    os.kill(pid, signal.SIGKILL)
    assert has_ended(pid)
    return pid


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def held_bytes(pid: int) -> int:
    """What counts for the process's limit."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


def has_ended(pid: int) -> bool:
    """Whether a process that is no child of this one ends soon, or has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([process], [], [], LIMIT_S)
    os.close(process)
    return bool(ended)


def cpu(pid: int) -> int:
    """What it used, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_answers_are_those_of_an_engine_here(apart: EngineApart, lasting_lake: Path) -> None:
    with EmbeddedEngine.open(str(lasting_lake)) as here:
        assert apart.relations() == here.relations()
        declare(
            LocalFolder(lasting_lake),
            Declaration("t", "typed_t", JSON, (Schema(1, '{"properties": {"id": {"type": "integer"}}}'),)),
        )
        assert [each.name for each in apart.relations() if each.name.startswith("typed_")] == ["typed_t"]
        assert apart.relations() == here.relations(), "as they are by now"
        for statement, parameters in {
            "SELECT * EXCLUDE body FROM messages ORDER BY physical_offset": (),
            "SELECT count(*) AS n FROM messages WHERE topic = $1": ("topic-1",),
            "SELECT $a AS a": {"a": None},
            "SELECT * FROM messages WHERE false": (),
            "SELECT range AS n, md5(range::VARCHAR) AS m FROM range(60000) ORDER BY n": (),
        }.items():
            answer = apart.query(statement, parameters).read_all()
            wanted = here.query(statement, parameters).read_all()
            assert answer.equals(wanted), statement
            assert answer.schema.equals(wanted.schema, check_metadata=True)
        assert apart.describe("SELECT * FROM messages").equals(here.describe("SELECT * FROM messages"))


def test_errors_are_those_of_an_engine_here(apart: EngineApart, lake: Path) -> None:
    with pytest.raises(ReadOnlyError) as refused:
        apart.query("DELETE FROM messages")
    assert refused.value.kind == "DELETE"
    with pytest.raises(LakeError, match="nothing does not exist"):
        apart.describe("SELECT * FROM nothing")
    rows = apart.query(
        "SELECT CASE WHEN range < 1000000 THEN 1 ELSE error('too far') END AS x FROM range(2000000)"
    )
    with pytest.raises(LakeError, match="too far"):
        rows.read_all()
    with pytest.raises(LocationError):
        EngineApart.open(str(lake / "nowhere"))


@pytest.mark.parametrize("statement", HUGE)
def test_a_value_beyond_memory_is_an_error_and_the_next_statement_works(
    apart: EngineApart, statement: str
) -> None:
    assert apart.query("SELECT count(*) AS n FROM messages").read_all().num_rows == 1
    pid, before = apart.pid, peak_bytes(apart.pid)
    held = held_bytes(pid)
    with pytest.raises(
        LakeError, match=r"needs more than the memory|the maximum supported string size|can travel"
    ):
        apart.query(statement).read_all()
    assert apart.query("SELECT 42 AS x").read_all().to_pylist() == [{"x": 42}]
    assert apart.pid == pid
    assert peak_bytes(pid) - before < MEMORY + (1536 << 20), (
        "1.5 GiB more, as docs/using.md says: what has no stack takes that room, too"
    )
    assert held_bytes(pid) - held < 64 << 20, "what was freed is given back"


def test_a_row_that_cannot_travel_is_refused(lake: Path) -> None:
    with (
        EngineApart.open(str(lake), Limits(memory_bytes=512 << 20)) as engine,
        pytest.raises(LakeError, match=r"a row has 80,\d+,\d+ bytes, of which 67,108,864 can travel"),
    ):
        engine.query("SELECT repeat('x', 80000000 + range) AS x FROM range(1)").read_all()


def test_a_process_that_ends_ends_its_statements_and_another_one_is_started(apart: EngineApart) -> None:
    rows = apart.query("SELECT range FROM range(1000000000000)")
    rows.read_next_batch()
    before = killed(apart)
    with pytest.raises(EngineEndedError, match=r"the engine ended while the statement ran.*ask again"):
        for _ in rows:
            pass
    assert apart.query("SELECT 42 AS x").read_all().num_rows == 1
    assert apart.pid != before


def test_another_process_that_waits_for_the_lake_holds_nobody(apart: EngineApart, pipe: Path) -> None:
    before = killed(apart)
    watches = [Watch(), Watch()]
    with ThreadPoolExecutor(2) as pool:
        failing = [asked(pool, partial(apart.query, "SELECT 42 AS x", watch=watch)) for watch in watches]
        wait_until(lambda: apart.pid != before, "another process is started")
        for watch, each in zip(watches, failing, strict=True):
            assert "while the engine was started again, which waits for the lake" in cancelled(watch, each)
    killed(apart)


def test_what_a_process_has_on_the_disk_is_removed_when_it_ends_however_it_does(
    lake: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "temp"
    folder.mkdir()
    with EngineApart.open(str(lake), Limits(temp_folder=str(folder))) as engine:
        assert list(folder.iterdir())
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(lambda: not list(folder.iterdir()), "nothing is left")


def test_a_process_with_a_statement_that_cannot_be_stopped_ends_before_anything_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or statements beside it fail for files that are gone, in place of running again."""

    folder, left = scratch_folder(str(tmp_path), SQL), list[bool]()

    monkeypatch.setattr(os, "_exit", lambda status: left.append(Path(folder).is_dir()))
    monkeypatch.setattr("structured_streaming.embedded.running.PATIENCE_S", 0.0)
    ours, theirs = Pipe()
    with ours, theirs, duckdb.connect() as cursor:
        running, call = Running(cursor, 60), Call(theirs)
        with call.over(running), running.working():
            call.cancel()
            wait_until(lambda: left)
    assert all(left)
    remove_scratch(folder)


def test_a_statement_is_cancelled_while_others_go_on(apart: EngineApart) -> None:
    endless, watch = "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000000) b", Watch()
    other = apart.query("SELECT range FROM range(300000)")
    with ThreadPoolExecutor(1) as pool:
        failing = asked(pool, lambda: apart.query(endless, watch=watch).read_all())
        assert cancelled(watch, failing) == "the statement was cancelled"
    assert other.read_all().num_rows == 300_000


def test_a_process_that_has_no_turn_to_end_itself_is_killed(
    apart: EngineApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that holds Python's lock: here it is stopped."""
    monkeypatch.setattr("structured_streaming.embedded.apart.PATIENCE_S", 0.5)
    monkeypatch.setattr("structured_streaming.embedded.apart._MORE_S", 0.5)
    monkeypatch.setattr("structured_streaming.embedded.apart._ALIVE_S", 0.5)
    rows = apart.query("SELECT range FROM range(10000000)", watch=(watch := Watch()))
    rows.read_next_batch()
    pid = apart.pid
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lambda: apart.query("SELECT 41 AS x").read_all().num_rows)
        watch.cancel()
        with pytest.raises(EngineEndedError):
            for _ in rows:
                pass
        assert beside.result() == 1
    assert apart.query("SELECT 42 AS x").read_all().num_rows == 1
    assert apart.pid != pid


def test_a_client_that_reads_nothing_more_has_no_process_killed(
    apart: EngineApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.embedded.apart.PATIENCE_S", 0.1)
    monkeypatch.setattr("structured_streaming.embedded.apart._MORE_S", 0.1)
    monkeypatch.setattr("structured_streaming.embedded.apart._ALIVE_S", LIMIT_S)
    rows = apart.query("SELECT range FROM range(10000000)", watch=(watch := Watch()))
    rows.read_next_batch()
    pid = apart.pid
    watch.cancel()
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    for each in timers:
        each.join(LIMIT_S)
    assert apart.query("SELECT 42 AS x").read_all().num_rows == 1
    assert apart.pid == pid
    rows.close()


def test_a_lake_that_does_not_answer_holds_no_call_for_good_and_ends_no_process(
    apart: EngineApart, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("structured_streaming.embedded.apart.PATIENCE_S", 0.5)
    monkeypatch.setattr("structured_streaming.embedded.apart._MORE_S", 0.5)
    monkeypatch.setattr("structured_streaming.embedded.apart._ALIVE_S", LIMIT_S)
    pid = apart.pid
    calls = (
        apart.relations,
        partial(apart.describe, "SELECT * FROM typed_t"),
        partial(apart.query, "SHOW TABLES"),
    )
    try:
        with ThreadPoolExecutor(1) as pool:
            for call in calls:
                watch = Watch()
                said = cancelled(watch, asked(pool, partial(call, watch=watch)))
                assert "waited for the lake, which does not answer" in said
                assert apart.query("SELECT 42 AS x").read_all().num_rows == 1
                assert apart.pid == pid
    finally:
        killed(apart)  # it would wait for the pipe


def test_what_no_interrupt_ends_ends_at_most_its_process(apart: EngineApart) -> None:
    watch = Watch()
    with ThreadPoolExecutor(1) as pool:
        said = cancelled(watch, asked(pool, lambda: apart.query(DOUBLED, watch=watch).read_all()))
    assert "the engine ended" in said or "needs more than the memory" in said or "cancelled" in said
    assert apart.query("SELECT 42 AS x").read_all().num_rows == 1


ENDLESS = "SELECT repeat('a', 200) LIKE '%a_%a_%a_%a_%a_%a_%a_%a_%a_%a_%b' AS found"
"""One call that looks for no interrupt, while the statement is planned."""
BEFORE = 15
"""Connections of the process before the statement below: it ends in a process that has had fewer, and in no other."""
ENDS_IN_ANOTHER = f"""WITH RECURSIVE r(n) AS (
  SELECT 1 UNION ALL SELECT n % 2 + 1 FROM r WHERE (SELECT current_connection_id()) > {BEFORE}
) SELECT count(*) > 0 AS ended FROM r"""


def test_what_looks_for_no_interrupt_is_ended_by_its_time_and_those_beside_it_run_again(
    apart: EngineApart,
) -> None:
    before = apart.pid
    while connections(apart) <= BEFORE:
        pass
    rows = apart.query("SELECT range FROM range(1000000000000)")
    rows.read_next_batch()
    watch, used = Watch(), cpu(before)
    with ThreadPoolExecutor(2) as pool:
        endless = asked(pool, lambda: apart.query(ENDLESS, watch=watch).read_all())
        wait_until(lambda: cpu(before) > used + 10, "it is in its call")
        beside = pool.submit(lambda: apart.query(ENDS_IN_ANOTHER).read_all().to_pylist())
        said = cancelled(watch, endless)
        assert f"the statement was cancelled; it did not stop within {HASTY_S:g} s" in said
        assert beside.result(LIMIT_S) == [{"ended": True}]
    assert apart.pid != before
    with pytest.raises(EngineEndedError, match=r"ask again"):
        for _ in rows:
            pass


def connections(engine: EngineApart) -> int:
    """Of its process so far."""
    (row,) = engine.query("SELECT current_connection_id() AS id").read_all().to_pylist()
    return int(row["id"])


def test_after_a_fatal_error_another_process_is_started(
    apart: EngineApart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE", str(tmp_path / "database"))
    killed(apart)
    while connections(apart) <= BEFORE:
        pass
    before = apart.pid
    rows = apart.query("SELECT range FROM range(1000000000000)")
    rows.read_next_batch()
    used = cpu(before)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lambda: apart.query(ENDS_IN_ANOTHER).read_all().to_pylist())
        wait_until(lambda: cpu(before) > used + 10, "it runs")
        with pytest.raises(LakeError, match=r"FATAL Error.*the process of the engine was ended") as fatal:
            apart.query("SELECT 'fatal'")
        assert not isinstance(fatal.value, EngineEndedError)
        assert beside.result(LIMIT_S) == [{"ended": True}]
    assert apart.pid != before
    with pytest.raises(EngineEndedError, match=r"ask again"):
        for _ in rows:
            pass


def test_an_engine_here_that_met_a_fatal_error_says_to_start_anew(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = list[duckdb.DuckDBPyConnection]()

    def database(*, delta: bool = False) -> duckdb.DuckDBPyConnection:
        found = connected(delta=True) if delta else duckdb.connect(tmp_path / "memory.db")
        if not delta:
            found.execute("SET debug_checkpoint_abort = 'before_truncate'")
            plans.append(found)
        return found

    monkeypatch.setattr("structured_streaming.embedded.engine.connected", database)
    with EmbeddedEngine.open(str(lake)) as engine:
        with plans[0].cursor() as cursor, pytest.raises(duckdb.FatalException):
            cursor.execute("FORCE CHECKPOINT")
        for ask in (engine.query, engine.describe):
            with pytest.raises(LakeError, match=r"answers nothing more; start this program anew \(FATAL"):
                ask("SELECT 1")


def test_a_program_that_is_killed_leaves_no_process_and_no_folder_whatever_runs_in_it(
    standing_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process a call that nothing ends, in the other one rows that nobody takes."""
    monkeypatch.delenv(
        "PYTHONPATH", raising=False
    )  # not `HASTY`: who ends itself leaves its folder to the program
    program = (
        "import os, signal, threading, time\n"
        "from structured_streaming.embedded.apart import EngineApart\n"
        "from structured_streaming.embedded.limits import Limits\n"
        f"engines = [EngineApart.open({str(standing_lake)!r}, Limits(temp_folder={str(tmp_path)!r})) for _ in range(2)]\n"
        "stuck, streaming = (each.pid for each in engines)\n"
        f"threading.Thread(target=engines[0].query, args=[{ENDLESS!r}], daemon=True).start()\n"
        "used = lambda: int(open(f'/proc/{stuck}/stat').read().split()[13])\n"
        "before = used()\n"
        "engines[1].query('SELECT range FROM range(1000000000000)').read_next_batch()\n"
        "while used() < before + 20: time.sleep(0.02)\n"
        "print(stuck, streaming, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=LIMIT_S, check=False
    )
    assert all(has_ended(int(each)) for each in done.stdout.split())
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_is_killed_leaves_no_process_that_waits_for_an_object_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # which takes a connection and says nothing
        listener.settimeout(LIMIT_S)
        program = (
            "import threading, time\n"
            "from structured_streaming.embedded.apart import EngineApart\n"
            "threading.Thread(target=EngineApart.open, args=['s3://bucket/lake'], daemon=True).start()\n"
            "time.sleep(600)\n"
        )
        store = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "a",
            "AWS_REGION": "us-east-1",
        }
        process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **store})
        try:
            connection, _ = listener.accept()
        finally:
            process.kill()
            process.wait()
        with connection:
            connection.settimeout(LIMIT_S)
            while connection.recv(1 << 16):
                pass
