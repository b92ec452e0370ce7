"""How a reput decides what a query's end means."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from structured_streaming import reput
from structured_streaming.errors import LakeError


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
    monkeypatch.setattr(reput, "_run_query", lambda *arguments: problem)
    stopping = reput._Stopping()
    coming = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    coming.start()
    try:
        options = reput.ReputOptions("/nowhere", store="/nowhere")
        if told:
            with pytest.raises(LakeError, match=told):
                reput._run(session, options, lambda report: None, None, stopping)
        else:
            assert reput._run(session, options, lambda report: None, None, stopping) is False
    finally:
        coming.join()
        assert stopping.wait(10)


@pytest.mark.usefixtures("handlers")
def test_a_gap_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = None
    runs: list[str] = []

    def run_query(*_: Any) -> str:
        runs.append("run")
        return "structured_streaming.errors.GapError: 10 bytes are gone\n"

    monkeypatch.setattr(reput, "_run_query", run_query)
    stopping = reput._Stopping()
    with pytest.raises(LakeError, match="10 bytes are gone"):
        reput._run(
            session, reput.ReputOptions("/nowhere", store="/nowhere"), lambda report: None, None, stopping
        )
    assert runs == ["run"]
