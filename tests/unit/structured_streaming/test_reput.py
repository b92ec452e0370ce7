"""How a reput decides what a query's end means."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from structured_streaming import reput, reput_query
from structured_streaming.absence import as_spark_reports, is_absence, unless
from structured_streaming.destination import FolderDestination
from structured_streaming.errors import (
    CatalogAwayError,
    CutShortError,
    JvmEndedError,
    LakeError,
    LocationError,
    StoreAwayError,
    UnreachableError,
)
from structured_streaming.reput_watch import NOBODY
from structured_streaming.stopping import Stopping
from tests.support.waiting import LIMIT_S


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONGEST_WAIT_S", "SIGNAL_S"):
        monkeypatch.setattr(reput_query, name, 0.0)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("structured_streaming.errors.ForeignWriterError: somebody else wrote\n", "somebody else wrote"),
        ("org.apache.spark.SparkException: the JVM is going\n", ""),
    ],
)
def test_a_signal_hides_what_it_may_have_caused_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, problem: str, told: str
) -> None:
    session: Any = None
    monkeypatch.setattr(reput_query, "_run_query", lambda *arguments: problem)
    stopping = Stopping()
    coming = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    coming.start()
    try:
        options = reput_query.ReputOptions("/nowhere", store="/nowhere")
        if told:
            with pytest.raises(LakeError, match=told):
                reput_query.run_until_done(
                    session, options, lambda report: None, FolderDestination(options), stopping
                )
        else:
            assert (
                reput_query.run_until_done(
                    session, options, lambda report: None, FolderDestination(options), stopping
                )
                is False
            )
    finally:
        coming.join()
        assert stopping.wait(LIMIT_S)


@pytest.mark.usefixtures("handlers")
def test_a_gap_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = None
    runs: list[str] = []

    def run_query(*_: Any) -> str:
        runs.append("run")
        return "structured_streaming.errors.GapError: 10 bytes are gone\n"

    monkeypatch.setattr(reput_query, "_run_query", run_query)
    stopping = Stopping()
    options = reput_query.ReputOptions("/nowhere", store="/nowhere")
    with pytest.raises(LakeError, match="10 bytes are gone"):
        reput_query.run_until_done(
            session, options, lambda report: None, FolderDestination(options), stopping
        )
    assert runs == ["run"]


@pytest.mark.usefixtures("handlers", "no_waits")
@pytest.mark.parametrize(
    ("error", "once", "runs"),
    [
        (UnreachableError, False, None),
        (UnreachableError, True, 1 + reput_query.RETRIES_ONCE),
        (StoreAwayError, False, None),
        (StoreAwayError, True, 1 + reput_query.RETRIES_ONCE),
        (CatalogAwayError, False, None),
        (LocationError, False, 1 + reput_query.RETRIES),
        (LocationError, True, 1),
    ],
)
def test_only_what_is_away_is_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], once: bool, runs: int | None
) -> None:
    session: Any = None
    ran, enough = 0, 2000

    def run_query(*_: Any) -> str | bool:
        nonlocal ran
        ran += 1
        try:
            raise LakeError("the table cannot be read") from error("nobody answers")
        except LakeError as raised:
            return ran == enough or as_spark_reports(raised)

    monkeypatch.setattr(reput_query, "_run_query", run_query)
    options = reput_query.ReputOptions("/nowhere", store="/nowhere", once=once)

    def run() -> bool:
        return reput_query.run_until_done(
            session, options, lambda report: None, FolderDestination(options), Stopping(), None
        )

    if runs is None:
        assert run()
    else:
        with pytest.raises(LakeError, match="the table cannot be read"):
            run()
    assert ran == (runs or enough)


@pytest.mark.usefixtures("handlers", "no_waits")
@pytest.mark.parametrize("error", [CutShortError, StoreAwayError, CatalogAwayError, LocationError])
def test_the_last_try_failed_because_the_jvm_ended(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """What may look like the end of a JVM is told as such, so that the run goes on with another one."""
    session: Any = None
    monkeypatch.setattr(reput_query, "_run_query", lambda *_: as_spark_reports(error("no rows came")))
    monkeypatch.setattr(reput_query, "RETRIES_ONCE", 0)
    options = reput_query.ReputOptions("/nowhere", store="/nowhere", once=True)
    with subprocess.Popen(["false"]) as jvm:
        jvm.wait(LIMIT_S)
        with pytest.raises(LakeError) as told:
            reput_query.run_until_done(
                session,
                options,
                lambda report: None,
                FolderDestination(options),
                Stopping(),
                jvm=jvm,
            )
    assert isinstance(told.value, JvmEndedError) == (error is not LocationError)


@pytest.mark.usefixtures("handlers", "no_waits")
@pytest.mark.parametrize("others", [reput_query.RETRIES, reput_query.RETRIES + 1])
def test_what_was_away_for_long_leaves_tries_to_what_fails_then(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    session: Any = None
    away, late = as_spark_reports(UnreachableError("nobody answers")), reput_query.WORKER_LATE
    ends: list[str | bool] = [*[away] * 50, *[late] * others, True]
    monkeypatch.setattr(reput_query, "_run_query", lambda *_: ends.pop(0))
    options = reput_query.ReputOptions("/nowhere", store="/nowhere")

    def run() -> bool:
        return reput_query.run_until_done(
            session, options, lambda report: None, FolderDestination(options), Stopping(), None
        )

    if others > reput_query.RETRIES:
        with pytest.raises(LakeError, match="did not start within 10 s"):
            run()
        assert ends == [True]
    else:
        assert run()


@pytest.mark.usefixtures("handlers", "no_waits")
def test_a_python_that_starts_late_is_waited_for_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by a run that ends by itself: Spark waits 10 s, and a host may be slower."""
    session: Any = None
    late = f"org.apache.spark.SparkException: {reput_query.WORKER_LATE}."
    ends: list[str | bool] = [*[late] * reput_query.RETRIES_ONCE, True]
    monkeypatch.setattr(reput_query, "_run_query", lambda *_: ends.pop(0))
    options = reput_query.ReputOptions("/nowhere", store="/nowhere", once=True)
    assert reput_query.run_until_done(
        session, options, lambda report: None, FolderDestination(options), Stopping()
    )
    told = capsys.readouterr().err.splitlines()
    assert len(told) == reput_query.RETRIES_ONCE
    assert all(
        "did not start within 10 s" in line and "the query starts again in 0 s" in line for line in told
    )


DIED = f"org.apache.spark.SparkException: {reput_query.WORKER_DIED}."
AWAY = "structured_streaming.errors.StoreAwayError: nobody answers"
LATE = f"org.apache.spark.SparkException: {reput_query.WORKER_LATE}."


@pytest.mark.usefixtures("handlers", "no_waits")
@pytest.mark.parametrize(
    ("ends", "with_care"),
    [
        ([DIED, DIED, None, DIED, True], [False, False, True, False, True]),
        ([DIED, LATE, DIED, True], [False, False, False, True]),
        ([LATE, LATE, True], [False, False, False]),
        ([DIED, DIED, AWAY, True], [False, False, True, True]),
    ],
)
def test_a_batch_is_staged_with_care_once_its_workers_died_more_often_than_luck_explains(
    monkeypatch: pytest.MonkeyPatch, ends: list[str | bool | None], with_care: list[bool]
) -> None:
    left = list(ends)
    session: Any = None
    careful: list[bool] = []

    def run_query(_session: Any, options: reput_query.ReputOptions, *_: Any) -> str | bool | None:
        careful.append(options.careful)
        return left.pop(0)

    monkeypatch.setattr(reput_query, "_run_query", run_query)
    options = reput_query.ReputOptions("/nowhere", store="/nowhere", once=True)
    assert reput_query.run_until_done(
        session, options, lambda report: None, FolderDestination(options), Stopping()
    )
    assert careful == with_care


def away() -> LakeError:
    try:
        raise LakeError("the table cannot be read") from StoreAwayError("nobody answers")
    except LakeError as error:
        return error


@pytest.mark.usefixtures("handlers", "no_waits")
@pytest.mark.parametrize("cause", [StoreAwayError("nobody answers"), away()])
def test_a_store_that_is_away_when_a_later_query_starts_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, cause: LakeError | OSError
) -> None:
    """Also where the one before ended for another typed topic, and not with a failure."""
    session: Any = None
    options = reput_query.ReputOptions("/nowhere", store="/nowhere")

    def run(*ends: Any) -> bool:
        left = iter(ends)

        def run_query(*_: Any) -> Any:
            end = next(left)
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(reput_query, "_run_query", run_query)
        return reput_query.run_until_done(
            session, options, lambda report: None, FolderDestination(options), Stopping(), None
        )

    assert run(None, *[reput_query.StartAgainError(cause)] * 20, True)
    with pytest.raises(LakeError, match=r"nobody answers|cannot be read"):
        run(reput_query.StartAgainError(cause))


def test_a_line_of_code_in_a_trace_is_no_error() -> None:
    text = "    raise LostDataError(reasons) if self._ahead else nobody\nstructured_streaming.errors.UnreachableError: it is away"
    assert is_absence(text)
    assert reput_query.retries(text, once=False) > reput_query.RETRIES
    assert not is_absence(text.replace("errors.UnreachableError", "errors.LakeError"))


def test_what_takes_too_long_is_left_alone_and_undone() -> None:
    late, undone, looks = threading.Event(), threading.Event(), 0

    def given_up() -> bool:
        nonlocal looks
        looks += 1
        return looks > 2

    def work() -> str:
        late.wait(LIMIT_S)
        return "late"

    assert unless(given_up, work, lambda result: undone.set() if result == "late" else None) is None
    assert not undone.is_set()
    late.set()
    assert undone.wait(LIMIT_S)
    assert unless(lambda: False, lambda: "at once", lambda _: None) == "at once"
    with pytest.raises(LakeError, match="away"):
        unless(lambda: False, lambda: _raise(LakeError("away")), lambda _: None)


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, ("local[2]", "")),
        (
            {"master": "spark://h:7077", "driver_host": "driver.example"},
            ("spark://h:7077", "driver.example"),
        ),
    ],
)
def test_spark_starts_where_the_command_says(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], asked: tuple[str, str]
) -> None:
    def session(master: str, _scratch: str, driver_host: str, *, delta: bool) -> None:
        raise LakeError(f"asked of {(master, driver_host)}")

    for name, done in {
        "provided_session": lambda: None,
        "checked": lambda options: options,
        "started": lambda start: start(),
        "reput_session": session,
    }.items():
        monkeypatch.setattr(reput, name, done)
    destination: Any = SimpleNamespace(by_spark=False, check=lambda: None, prepare=lambda: None)
    options = reput.ReputOptions("/nowhere", store="/nowhere")
    with pytest.raises(LakeError) as refused:
        reput.run_reput(options, destination=destination, **given)
    assert str(refused.value) == f"asked of {asked}"


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("token", "master", "warned"),
    [
        ("0123456789abcdef", "spark://h:7077", True),
        ("", "spark://h:7077", False),
        ("0123456789abcdef", "local[2]", False),
    ],
)
def test_that_other_hosts_get_the_token_in_plaintext_is_said(
    monkeypatch: pytest.MonkeyPatch, token: str, master: str, warned: bool
) -> None:
    monkeypatch.setenv("LAKEBROKER_TOKEN", token)
    monkeypatch.setattr(reput, "run_until_done", lambda *_: True)
    settings = SimpleNamespace(getAll=lambda: [("spark.master", master)])
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: settings))
    unused: Any = None
    told: list[str] = []
    options = reput.ReputOptions("/nowhere", brokers="127.0.0.1:1")
    assert reput._in_session(session, None, options, unused, unused, Stopping(), told.append, NOBODY)
    assert told[0] == "reading 1 log from 127.0.0.1:1"
    assert any("not encrypted; set spark.authenticate=true" in each for each in told) is warned
