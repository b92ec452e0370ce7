"""Log lines that cannot be written are counted and harm nothing; tracebacks show no values."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from broker_gateway.runtime.line_output import LineOutput
from broker_gateway.runtime.logs import configure_logs, say
from broker_gateway.runtime.scheduled_tasks import ScheduledTasks
from broker_gateway.runtime.tick import Stage, Tick
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def told(count: int, why: str) -> str:
    return f"{count} lost: {why}"


class Flaky(io.StringIO):
    """A stream in memory that fails while `full`."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lost_lines_are_counted_and_told_before_the_next_one() -> None:
    stream = Flaky()
    output = LineOutput(stream, told)
    assert output.line("one")
    stream.full = True
    assert not output.line("two")
    output.msg("three")
    assert output.lost == 2
    stream.full = False
    assert output.line("four")
    assert output.lost == 0
    assert stream.getvalue() == "one\n2 lost: [Errno 28] No space left on device\nfour\n"


def test_a_file_keeps_nothing_back_of_a_line_that_failed() -> None:
    with open("/dev/full", "w") as full:
        output = LineOutput(full, told)
        assert not output.line("x" * 100_000)
        assert not output.line("y")
        full.flush()
    assert output.lost == 2


def test_a_line_that_was_torn_is_ended_before_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, room = os.write, 3

    def scarce(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        some = data[:room]
        room -= len(some)
        return real(fd, some)

    path = tmp_path / "log"
    with path.open("w") as file:
        output = LineOutput(file, told)
        monkeypatch.setattr(os, "write", scarce)
        assert not output.line("abcdef")
        room = 1000
        assert output.line("next")
    lines = path.read_text().splitlines()
    assert lines == ["abc", "1 lost: [Errno 28] No space left on device", "next"]


def test_a_closed_stream_and_none_at_all_raise_nothing() -> None:
    stream = io.StringIO()
    output = LineOutput(stream)
    stream.close()
    assert not output.line("x")
    assert LineOutput(None).line("x")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_loggers_say_how_many_lines_were_lost(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Flaky()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(log_format, "info", "b_0")
    log = structlog.get_logger()
    stream.full = True
    for _ in range(3):
        log.error("lost", exc_info=OSError("x"))
    configure_logs(log_format, "warning", "b_0")
    stream.full = False
    log.warning("well again")
    notice, line = stream.getvalue().splitlines()
    assert "log lines could not be written and are lost" in notice
    assert ("lines=3" in notice) or ('"lines": 3' in notice)
    assert "b_0" in notice
    assert "well again" in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_tracebacks_show_no_values(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(log_format, "info")

    def serve(token: str) -> None:
        raise ValueError(f"{len(token)} characters")

    try:
        serve("Bearer TOP" + "SECRET")
    except ValueError:
        structlog.get_logger().exception("failed")
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "TOPSECRET" not in shown


def test_a_boot_line_that_cannot_be_printed_is_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs("text", "info")
    stream = Flaky()
    monkeypatch.setattr(sys, "stdout", stream)
    say("up")
    stream.full = True
    say("boot success")
    assert stream.getvalue() == "up\n"
    assert "boot success" in capsys.readouterr().err


def test_tasks_go_on_when_their_failures_cannot_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Flaky()
    stream.full = True
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs("text", "info")

    def work() -> None:
        raise OSError("disk")

    async def scenario() -> None:
        tasks = ScheduledTasks()
        tasks.add("task", 0.001, work)
        tasks.start()
        (task,) = tasks.all()
        await until(lambda: task.runs > 3)
        await tasks.stop()

    asyncio.run(scenario())


def test_a_turn_that_was_ended_early_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def broken(*_: object, **__: object) -> None:
        raise OSError("the log is full")

    monkeypatch.setattr("broker_gateway.runtime.tick.log.exception", broken, raising=False)

    def failing() -> None:
        raise ValueError("x")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        tick = Tick()
        tick.add(Stage.APPEND, failing)
        tick.add(Stage.WRITE, lambda: done.append("left over"))
        await until(lambda: done)
        tick.add(Stage.APPEND, lambda: done.append("next"))
        await until(lambda: not tick.scheduled)

    asyncio.run(scenario())
    assert done == ["left over", "next"]


def test_a_stack_is_printed_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text", "info")
    structlog.get_logger().warning("the event loop hangs", stack="one\n  two\x1b", other="a\nb")
    err = capsys.readouterr().err
    assert "one\n  two\\x1b" in err
    assert "a\\nb" in err
