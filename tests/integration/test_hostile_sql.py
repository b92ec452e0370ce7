"""Statements that would do harm, through `lakebroker sql` and over Flight SQL: each is refused or bounded, with one clear error, and
the next statement works. The processes' memory says that they were bounded."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2 as sql
from lakebroker_testing.gateway import START_S, command
from tests.suite.evidence import LONG
from tests.support.lakes.served import Client, described, eventually, made_lake
from tests.support.machines.ending_with_us import end_with_us

pytestmark = pytest.mark.timeout(900)
MEMORY = 128 << 20
BOUND = MEMORY + (512 << 20)
"""Of what is allocated for statements."""
OPTIONS = ("--memory", "128MiB", "--timeout")
AMPLE, SHORT = "60s", "4s"
"""Time for what ends by itself, and for what may take all of it."""
PATIENCE_S = 300.0


def doubled(levels: int) -> str:
    tables = ", ".join(f"c{at} AS (SELECT * FROM c{at - 1} a, c{at - 1} b)" for at in range(1, levels))
    return f"WITH c0 AS (SELECT * FROM messages), {tables} SELECT * FROM c{levels - 1}"


def deep(before: str, middle: str, behind: str = "", levels: int = 100_000) -> str:
    return f"SELECT {before * levels}{middle}{behind * levels}"


def columns(count: int) -> str:
    return "SELECT " + ", ".join(f"{at} AS c{at}" for at in range(count))


class Hostile(NamedTuple):
    """`says`: what its error says; over Flight SQL too large a statement is refused for its size."""

    statement: str
    says: str


MORE_MEMORY = (
    "needs more than the memory|the maximum supported string size|can travel at most|too large to print"
)
REFUSED = "only reads|is refused: DuckDB answers queries"
LATE = "took longer than|deadline|a call has 4 s"
DEEP = "memory exhausted|Max expression depth|nested too deep|Recursion level"
HOSTILE = {
    "a value": Hostile("SELECT repeat('x', 3000000000)", MORE_MEMORY),
    "a larger value": Hostile("SELECT repeat('x', 10000000000)", MORE_MEMORY),
    "a list": Hostile("SELECT len(range(300000000))", MORE_MEMORY),
    "values of one vector": Hostile(
        "SELECT max(length(repeat('x', 10000000 + i))) FROM range(2000) t(i)", MORE_MEMORY
    ),
    "list()": Hostile("SELECT list(i) FROM range(100000000) t(i)", MORE_MEMORY),
    "string_agg()": Hostile(
        "SELECT string_agg(repeat(body::VARCHAR, 10000), '') FROM messages, range(1000)", MORE_MEMORY
    ),
    "INSERT": Hostile("INSERT INTO messages SELECT * FROM messages", "only reads"),
    "COPY": Hostile("COPY messages TO '{lake}/messages/x.parquet'", REFUSED),
    "CREATE": Hostile("CREATE TABLE t AS SELECT 1", "only reads"),
    "EXPORT": Hostile("EXPORT DATABASE '{lake}/x'", REFUSED),
    "ATTACH": Hostile("ATTACH '{file}' AS x", REFUSED),
    "PRAGMA": Hostile("PRAGMA enable_profiling", "only reads|PRAGMA|pragma"),
    "SET": Hostile("SET memory_limit = '100GB'", REFUSED),
    "INSTALL": Hostile("INSTALL httpfs", REFUSED),
    "LOAD": Hostile("LOAD httpfs", REFUSED),
    "CALL": Hostile("CALL enable_logging(storage = 'file', storage_path = '{lake}/log')", REFUSED),
    "read_csv": Hostile(
        "SELECT * FROM read_csv('{file}')", r"read_csv\(\) is refused|read_csv_auto\(\) is refused"
    ),
    "read_parquet": Hostile(
        "SELECT * FROM read_parquet('{lake}/messages/*.parquet')", r"read_parquet\(\) is refused"
    ),
    "read_text": Hostile("SELECT * FROM read_text('{file}')", r"read_text\(\) is refused"),
    "glob": Hostile("SELECT * FROM glob('/*')", r"glob\(\) is refused"),
    "json_serialize_plan": Hostile(
        "SELECT json_serialize_plan('SELECT * FROM delta_scan(''{lake}'')'), count(*) FROM messages",
        r"json_serialize_plan\(\) is refused",
    ),
    "settings": Hostile(
        "SELECT any_value(current_setting('allowed_directories')) FROM messages",
        r"current_setting\(\) is refused",
    ),
    "a file as a table": Hostile("SELECT * FROM '{file}'", "does not exist"),
    "httpfs": Hostile("SELECT * FROM 'http://127.0.0.1:9/x.parquet'", "does not exist|disabled"),
    "a recursion without end": Hostile(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r", LATE
    ),
    "a recursion that grows": Hostile(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r, range(2)) SELECT count(*) FROM r",
        f"{LATE}|{MORE_MEMORY}|needs more than the temporary folder",
    ),
    "a cross join": Hostile(
        "SELECT sum(a.range % 7 * b.range) FROM range(100000000000) a, range(100000000000) b", LATE
    ),
    "parentheses": Hostile(deep("(", "1", ")"), DEEP),
    "lists in lists": Hostile(deep("[", "1", "]"), DEEP),
    "functions": Hostile(deep("abs(", "1", ")", 700), DEEP),
    "a sum": Hostile(deep("1 + ", "1"), DEEP),
    "subqueries": Hostile(f"SELECT * FROM {'(SELECT * FROM ' * 2000}messages{')' * 2000}", DEEP),
    "columns": Hostile(columns(100_000), f"{LATE}|{MORE_MEMORY}"),
    "columns that double": Hostile(doubled(24), f"{MORE_MEMORY}|the engine ended"),
    "joins": Hostile(
        "SELECT count(*) FROM " + ", ".join(f"range(2) t{at}" for at in range(500)), f"{LATE}|{MORE_MEMORY}"
    ),
    "values": Hostile(
        f"SELECT * FROM messages WHERE queue_id IN ({', '.join(map(str, range(300_000)))})",
        f"{LATE}|{MORE_MEMORY}",
    ),
    "parameters": Hostile(f"SELECT [{', '.join('?' * 60_000)}]", "arameter|nested|values"),
}
"""By what they have too much of. The first error of each is looked for in its text."""
LARGE = "SELECT range AS n, md5(range::VARCHAR) AS m, repeat(md5(range::VARCHAR), 10) AS t FROM range(1000000) ORDER BY m"
"""A result of 360 MB, sorted."""


def peak_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


class Door(Protocol):
    """A way in, to statements of at most `size` bytes."""

    size: int

    def asked(self, statement: str) -> str:
        """What its error says; it has no result."""

    def count(self, statement: str) -> int:
        """Rows of its result, or bytes."""

    def works(self) -> bool:
        """Whether another statement is answered."""

    def alive(self) -> bool:
        """Whether its process runs."""

    def peak(self) -> int:
        """Bytes that its processes had more than at first, at most."""

    def close(self) -> None: ...


class Shell:
    """`lakebroker sql` at a terminal, which goes on after an error."""

    size = 1 << 30

    def __init__(self, lake: Path, folder: Path, timeout: str) -> None:
        self._errors, self._out = folder / "errors", folder / "out"
        self._terminal, theirs = pty.openpty()
        tty.setraw(theirs)
        with self._errors.open("wb") as errors, self._out.open("wb") as out:
            self._process = subprocess.Popen(
                command(
                    "sql",
                    "--lake",
                    str(lake),
                    "--format",
                    "json",
                    "--temp-folder",
                    str(folder),
                    *OPTIONS,
                    timeout,
                ),
                stdin=theirs,
                stdout=out,
                stderr=errors,
                preexec_fn=end_with_us,
            )
        os.close(theirs)
        self._count = 0
        assert self.works()
        self._before = peak_bytes(self._process.pid)

    def asked(self, statement: str) -> str:
        before = self._errors.stat().st_size
        self._write(re.sub(r"(.{500,1000}?[,(\[])", r"\1\n", statement) + "\n;\n")
        eventually(lambda: not self.alive() or "lakebroker: " in self._said(before), "an error", PATIENCE_S)
        assert self.works()
        return self._said(before)

    def works(self) -> bool:
        self._count += 1
        self._write(f"SELECT 'answer {self._count}' AS x;\n")
        wanted = json.dumps([{"x": f"answer {self._count}"}])
        eventually(lambda: self._process.poll() is not None or self._ends(wanted), wanted, PATIENCE_S)
        return self._ends(wanted)

    def alive(self) -> bool:
        return self._process.poll() is None

    def count(self, statement: str) -> int:
        before = self._out.stat().st_size
        self._write(f"{statement};\n")
        assert self.works()
        return self._out.stat().st_size - before

    def peak(self) -> int:
        return peak_bytes(self._process.pid) - self._before

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._terminal, data[:1000]) :]

    def _ends(self, wanted: str) -> bool:
        with self._out.open("rb") as out:
            out.seek(max(self._out.stat().st_size - 1000, 0))
            return out.read().decode().rstrip().endswith(wanted)

    def _said(self, since: int) -> str:
        return self._errors.read_bytes()[since:].decode()


class Server:
    """`lakebroker serve`."""

    size = 256 << 10

    def __init__(self, lake: Path, folder: Path, timeout: str) -> None:
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command(
                    "serve",
                    "--lake",
                    str(lake),
                    "--listen",
                    "127.0.0.1:0",
                    "--temp-folder",
                    str(folder),
                    *OPTIONS,
                    timeout,
                ),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                preexec_fn=end_with_us,
            )
        eventually(lambda: bool(self._uri()), "it listens", START_S)
        self._client = Client(self._uri()[0], "")
        assert self.works()
        self._before = self._peaks()

    def asked(self, statement: str) -> str:
        with pytest.raises((pa.ArrowException, OSError, NotImplementedError)) as failed:
            for _ in self.rows(statement):
                pass
        return str(failed.value)

    def rows(self, statement: str) -> Iterator[Any]:
        options = flight.FlightCallOptions(timeout=PATIENCE_S)
        command = described(sql.CommandStatementQuery(query=statement))
        info = self._client.flight.get_flight_info(command, options)
        for chunk in self._client.flight.do_get(info.endpoints[0].ticket, options):
            yield chunk.data

    def works(self) -> bool:
        return [batch.to_pylist() for batch in self.rows("SELECT 42 AS x")] == [[{"x": 42}]]

    def alive(self) -> bool:
        return self._process.poll() is None

    def count(self, statement: str) -> int:
        return sum(batch.num_rows for batch in self.rows(statement))

    def peak(self) -> int:
        return max(now - before for now, before in zip(self._peaks(), self._before, strict=True))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _uri(self) -> list[str]:
        return re.findall(r"is served at (grpc\S*://\S+)", self._errors.read_text())

    def _peaks(self) -> list[int]:
        """Of the server, and of its engine, which may be another one than before."""
        children = list[int]()
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that ended
                children += map(int, (task / "children").read_text().split())
        (engine,) = children
        return [peak_bytes(self._process.pid), peak_bytes(engine)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_lake(tmp_path_factory.mktemp("hostile"))


class Doors:
    """One of each kind and time limit, opened when it is asked for; one that ended fails no test but its own."""

    def __init__(self, lake: Path, folders: pytest.TempPathFactory) -> None:
        self._lake, self._folders = lake, folders
        self._open: dict[tuple[Callable[[Path, Path, str], Door], str], Door] = {}

    def of(self, kind: Callable[[Path, Path, str], Door], timeout: str) -> Door:
        door = self._open.get((kind, timeout))
        if door is None or not door.alive():
            door = self._open[kind, timeout] = kind(self._lake, self._folders.mktemp("door"), timeout)
        return door

    def close(self) -> None:
        for door in self._open.values():
            door.close()


@pytest.fixture(scope="module")
def doors(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    made = Doors(lake, tmp_path_factory)
    yield made
    made.close()


@pytest.mark.parametrize("kind", [Shell, Server])
@pytest.mark.parametrize("what", HOSTILE)
def test_it_is_refused_or_bounded_and_the_next_statement_works(
    kind: Callable[[Path, Path, str], Door], doors: Doors, lake: Path, tmp_path: Path, what: str
) -> None:
    hostile = HOSTILE[what]
    door = doors.of(kind, SHORT if LATE in hostile.says else AMPLE)
    file = tmp_path / "secret.txt"
    file.write_text("secret\n")
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*")}
    statement = hostile.statement.replace("{lake}", str(lake)).replace("{file}", str(file))
    said = door.asked(statement)
    wanted = hostile.says if len(statement.encode()) <= door.size else "bytes; give one of|larger than max"
    assert re.search(wanted, said), said[:2000]
    assert "Traceback" not in said
    assert "secret\n" not in said
    assert door.works()
    assert door.peak() < BOUND
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*")} == before


ENDLESS = "SELECT repeat('a', 200) LIKE '%a_%a_%a_%a_%a_%a_%a_%a_%a_%a_%b'"
"""One call that looks for no interrupt, while the statement is planned."""


def asking(lake: Path, folder: Path, timeout: str) -> subprocess.Popen[str]:
    arguments = ("--lake", str(lake), "--temp-folder", str(folder), "--timeout", timeout, ENDLESS)
    return subprocess.Popen(
        command("sql", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_us,
    )


def test_the_shell_ends_what_looks_for_no_interrupt_with_its_process(lake: Path, tmp_path: Path) -> None:
    process = asking(lake, tmp_path, "1s")
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert "took longer than 1 s" in errors
    assert "did not stop within 10 s" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_ctrl_c_ends_it_too(lake: Path, tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    """Signals of one number are noted once, where the program has no turn between them; of two numbers, twice."""
    process = asking(lake, tmp_path, "1h")
    eventually(lambda: any(tmp_path.iterdir()), "the engine is open", PATIENCE_S)
    cpu_before = _cpu(process.pid)
    eventually(lambda: _cpu(process.pid) > cpu_before + 300, "the statement runs", PATIENCE_S)
    for number in signals:
        process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert ("did not stop within 10 s" in errors) if len(signals) == 1 else ("interrupted" in errors)
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def _cpu(pid: int) -> int:
    """In hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


@pytest.mark.parametrize(
    ("statement", "limit"),
    [
        pytest.param(ENDLESS, "a call has 60 s", marks=LONG, id="while it is planned"),
        pytest.param(f"{ENDLESS[:-1]}' || range FROM range(1)", "a call has 5 s", id="while it runs"),
    ],
)
def test_the_server_ends_what_looks_for_no_interrupt(
    lake: Path, tmp_path: Path, statement: str, limit: str
) -> None:
    door = Server(lake, tmp_path, "5s")
    try:
        assert limit in door.asked(statement)
        assert door.works()
    finally:
        door.close()


@pytest.mark.parametrize("kind", [Shell, Server])
def test_a_result_larger_than_memory_is_streamed(
    kind: Callable[[Path, Path, str], Door], lake: Path, tmp_path: Path
) -> None:
    door = kind(lake, tmp_path, "10m")
    try:
        assert door.count(LARGE) >= 1_000_000
        assert door.peak() < BOUND
    finally:
        door.close()
