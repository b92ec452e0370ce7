"""Statements that would do harm, through `lakebroker sql` at a terminal and `lakebroker serve`: one of each kind is refused or bounded,
with one clear error, and the next statement works. The processes' memory says that they were bounded.

The statements of each kind: `tests/unit/structured_streaming/embedded/test_hostile.py`, of memory `test_apart.py` there.
"""

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
from lakebroker_testing.prestarted import start
from tests.suite.evidence import LONG
from tests.suite.patience import FACTOR
from tests.support.brokers import with_constants
from tests.support.lakes.served import Client, ServeProcess, described, made_lake, peak_bytes
from tests.support.machines.processes import children
from tests.support.waiting import LIMIT_S, in_time, wait_until

pytestmark = pytest.mark.timeout(900)
MEMORY = 128 << 20
BOUND = MEMORY + (512 << 20)
"""Of what is allocated for statements."""
OPTIONS = ("--memory", "128MiB", "--timeout")
AMPLE, SHORT = "1h", f"{FACTOR:.0f}s"
"""Time for what ends by itself, and for what takes all of it."""
_DOUBLED = ", ".join(f"c{at} AS (SELECT * FROM c{at - 1} a, c{at - 1} b)" for at in range(1, 24))


class Hostile(NamedTuple):
    """`says`: what its error says."""

    statement: str
    says: str


MORE_MEMORY = "needs more than the memory|the maximum supported string size|can travel at most"
ERROR = "lakebroker: "
"""What an error of the shell begins with."""
PROMPT = "lakebroker> "
LATE = f"took longer than|deadline|a call has {FACTOR:.0f} s"
HOSTILE = {
    "a value": Hostile("SELECT repeat('x', 3000000000)", f"{MORE_MEMORY}|too large to print"),
    "INSERT": Hostile("INSERT INTO messages SELECT * FROM messages", "only reads"),
    "read_text": Hostile("SELECT * FROM read_text('{file}')", r"read_text\(\) is refused"),
    "a cross join": Hostile(
        "SELECT sum(a.range % 7 * b.range) FROM range(100000000000) a, range(100000000000) b", LATE
    ),
    "parentheses": Hostile(
        f"SELECT {'(' * 100_000}1{')' * 100_000}",
        "memory exhausted|Max expression depth|nested too deep|Recursion level",
    ),
    "columns that double": Hostile(
        f"WITH c0 AS (SELECT * FROM messages), {_DOUBLED} SELECT * FROM c23",
        f"{MORE_MEMORY}|the engine ended",
    ),
}
"""By what is wrong with them."""
ROW_BYTES, ROWS = 4_000, 75_000
LARGE = f"SELECT range AS n, repeat('x', {ROW_BYTES}) AS t FROM range({ROWS})"


class Door(Protocol):
    """A way in."""

    def asked(self, statement: str) -> str:
        """What its error says; it has no result."""

    def size(self, statement: str) -> int:
        """Bytes of its result."""

    def works(self) -> bool:
        """Whether another statement is answered; where a busy machine lets its time pass, it is asked again."""

    def alive(self) -> bool:
        """Whether its process runs."""

    def peak(self) -> int:
        """Bytes that its processes had more than at first, at most."""

    def close(self) -> None: ...


class Shell:
    """`lakebroker sql` at a terminal, which goes on after an error."""

    def __init__(self, lake: Path, folder: Path, timeout: str) -> None:
        self._errors, self._out = folder / "errors", folder / "out"
        self._terminal, theirs = pty.openpty()
        tty.setraw(theirs)
        arguments = ("--lake", str(lake), "--format", "json", "--temp-folder", str(folder), *OPTIONS, timeout)
        with self._errors.open("wb") as errors, self._out.open("wb") as out:
            self._process = start("sql", *arguments, stdin=theirs, stdout=out, stderr=errors)
        os.close(theirs)
        self._count = self._late = 0
        assert self.works()
        self._before = peak_bytes(self._process.pid)

    def asked(self, statement: str) -> str:
        before, late = self._errors.stat().st_size, self._late
        self._write(re.sub(r"(.{500,1000}?[,(\[])", r"\1\n", statement) + "\n;\n")
        wait_until(lambda: not self.alive() or self._errs(before), "a whole error")
        assert self.works()
        return self._said(before).rsplit(ERROR, self._late - late)[0]

    def works(self) -> bool:
        return in_time(self._answers, lambda answers: answers is None) is True

    def _answers(self) -> bool | None:
        """Whether a statement is answered; None where its time was over."""
        self._count += 1
        before = self._errors.stat().st_size
        self._write(f"SELECT 'answer {self._count}' AS x;\n")
        wanted = json.dumps([{"x": f"answer {self._count}"}])

        def late() -> bool:
            return re.search(LATE, self._said(before)) is not None

        wait_until(lambda: not self.alive() or self._ends(wanted) or late(), wanted)
        if late():
            self._late += 1
            return None
        return self._ends(wanted)

    def alive(self) -> bool:
        return self._process.poll() is None

    def size(self, statement: str) -> int:
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

    def _errs(self, since: int) -> bool:
        """Whether an error is there, to its end: the prompt is behind it."""
        said = self._said(since)
        return ERROR in said and said.endswith(PROMPT)

    def _said(self, since: int) -> str:
        return self._errors.read_bytes()[since:].decode()


class Server:
    """`lakebroker serve`."""

    def __init__(self, lake: Path, folder: Path, timeout: str) -> None:
        self._serving = ServeProcess(folder, lake, "--temp-folder", str(folder), *OPTIONS, timeout)
        self._client = Client(self._serving.uri, "")
        assert self.works()
        self._before = self._peaks()

    def asked(self, statement: str) -> str:
        with pytest.raises((pa.ArrowException, OSError, NotImplementedError)) as failed:
            for _ in self._rows(statement):
                pass
        return str(failed.value)

    def works(self) -> bool:
        return in_time(self._answer, lambda answer: answer is None) == [[{"x": 42}]]

    def _answer(self) -> list[Any] | None:
        """To a statement; None where its time was over."""
        with contextlib.suppress(flight.FlightTimedOutError):
            return [batch.to_pylist() for batch in self._rows("SELECT 42 AS x")]
        return None

    def alive(self) -> bool:
        return self._serving.process.poll() is None

    def size(self, statement: str) -> int:
        return sum(batch.nbytes for batch in self._rows(statement))

    def peak(self) -> int:
        return max(now - before for now, before in zip(self._peaks(), self._before, strict=True))

    def close(self) -> None:
        self._serving.__exit__()

    def _rows(self, statement: str) -> Iterator[Any]:
        options = flight.FlightCallOptions(timeout=LIMIT_S)
        command = described(sql.CommandStatementQuery(query=statement))
        info = self._client.flight.get_flight_info(command, options)
        for chunk in self._client.flight.do_get(info.endpoints[0].ticket, options):
            yield chunk.data

    def _peaks(self) -> list[int]:
        """Of the server, and of its engine, which may be another one than before."""
        server = self._serving.process.pid
        (engine,) = children(server)
        return [peak_bytes(server), peak_bytes(engine)]


Kind = Callable[[Path, Path, str], Door]
BOTH = pytest.mark.parametrize("kind", [Shell, Server])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_lake(tmp_path_factory.mktemp("hostile"))


class Doors:
    """One of each kind and time limit, opened when it is asked for; one that ended fails no test but its own."""

    def __init__(self, lake: Path, folders: pytest.TempPathFactory) -> None:
        self._lake, self._folders = lake, folders
        self._open: dict[tuple[Kind, str], Door] = {}

    def of(self, kind: Kind, timeout: str) -> Door:
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


@BOTH
@pytest.mark.parametrize(
    "what", [pytest.param(each, marks=LONG if "double" in each else ()) for each in HOSTILE]
)
def test_it_is_refused_or_bounded_and_the_next_statement_works(
    kind: Kind, doors: Doors, lake: Path, tmp_path: Path, what: str
) -> None:
    hostile = HOSTILE[what]
    door = doors.of(kind, SHORT if hostile.says == LATE else AMPLE)
    file = tmp_path / "secret.txt"
    file.write_text("secret\n")
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*")}
    said = door.asked(hostile.statement.replace("{file}", str(file)))
    assert re.search(hostile.says, said), said[:2000]
    assert "Traceback" not in said
    assert "secret\n" not in said
    assert door.works()
    assert door.peak() < BOUND
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*")} == before


@BOTH
def test_a_result_larger_than_memory_is_streamed(kind: Kind, lake: Path, tmp_path: Path) -> None:
    door = kind(lake, tmp_path, AMPLE)
    try:
        assert door.size(LARGE) > ROWS * ROW_BYTES
        assert door.peak() < ROWS * ROW_BYTES - (60 << 20)
    finally:
        door.close()


ENDLESS = "SELECT repeat('a', 200) LIKE '%a_%a_%a_%a_%a_%a_%a_%a_%a_%a_%b'"
"""One call that looks for no interrupt, while the statement is planned."""


def asking(lake: Path, folder: Path, timeout: str, patience_s: float) -> subprocess.Popen[bytes]:
    """`lakebroker sql`, which waits so many seconds for the engine to stop, in place of 10."""
    return with_constants.start(
        {"structured_streaming.embedded.running.PATIENCE_S": patience_s},
        *("sql", "--lake", str(lake), "--temp-folder", str(folder), "--timeout", timeout, ENDLESS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_shell_ends_what_looks_for_no_interrupt_with_its_process(lake: Path, tmp_path: Path) -> None:
    process = asking(lake, tmp_path, "1s", 0.1)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (1, b"")
    assert b"took longer than 1 s" in errors
    assert b"did not stop within 0.1 s" in errors
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("signals", "patience_s", "said"),
    [
        ((signal.SIGINT,), 0.1, b"did not stop within 0.1 s"),
        ((signal.SIGINT, signal.SIGTERM), 600, b"interrupted"),
    ],
    ids=["once", "twice"],
)
def test_ctrl_c_ends_it_too(
    lake: Path, tmp_path: Path, signals: tuple[signal.Signals, ...], patience_s: float, said: bytes
) -> None:
    """Signals of one number are noted once, where the program has no turn between them; of two numbers, twice."""
    process = asking(lake, tmp_path, "1h", patience_s)
    assert process.stderr is not None
    assert b"tables alone" in process.stderr.readline()  # it has the engine by then
    cpu_before = _cpu(process.pid)
    wait_until(lambda: _cpu(process.pid) > cpu_before + 20, "work of the statement")
    for number in signals:
        process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert said in errors
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def _cpu(pid: int) -> int:
    """In hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


@pytest.mark.parametrize(
    ("statement", "limit"),
    [
        pytest.param(ENDLESS, "a call has 60 s", id="while it is planned", marks=LONG),
        pytest.param(f"{ENDLESS[:-1]}' || range FROM range(1)", "a call has 5 s", id="while it runs"),
    ],
)
def test_the_server_ends_what_looks_for_no_interrupt(
    lake: Path, tmp_path: Path, statement: str, limit: str
) -> None:
    """With the engine's process, which has 10 s. That those beside it run again: `test_apart.py` of the unit tests; that planning has its
    time, in short: `flight/test_calls.py`."""
    door = Server(lake, tmp_path, "5s")
    try:
        assert limit in door.asked(statement)
        assert door.works()
    finally:
        door.close()
