"""What a signal does at once, wherever the run is."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from structured_streaming import reput
from structured_streaming.reput_watch import NOBODY
from structured_streaming.stopping import Stopping
from tests.support.machines.processes import Hanging


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    py4j = logging.getLogger("py4j")
    level, made = py4j.level, Stopping()
    py4j.setLevel(logging.NOTSET)  # a run that was stopped in this process left it off
    yield made
    made.restore()
    py4j.setLevel(level)


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    with Hanging() as hanging:
        yield hanging


def test_calls_that_fail_for_it_are_not_logged(stopping: Stopping, caplog: pytest.LogCaptureFixture) -> None:
    call = logging.getLogger("py4j.clientserver")
    call.error("before")
    signal.raise_signal(signal.SIGTERM)
    call.error("behind")
    assert (stopping.number, stopping.is_set()) == (signal.SIGTERM, True)
    assert caplog.messages == ["before"]


def test_the_second_ends_the_jvm_of_a_run_that_hangs_and_two_at_once_are_one(
    stopping: Stopping, jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("structured_streaming.stopping.time.monotonic", lambda: now)

    def signalled(*_: object) -> bool:
        nonlocal now
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert jvm.poll() is None
        now = 1.0
        signal.raise_signal(signal.SIGINT)
        return False

    for name, done in {
        "started": lambda _start: None,
        "jvm_of": lambda _session: jvm,
        "expect_end_of_jvm": lambda *_, ours: lambda: None,
        "_in_session": signalled,
        "end_session": lambda _session: None,
    }.items():
        monkeypatch.setattr(reput, name, done)
    unused: Any = None
    assert not reput._in_own_jvm("", "", unused, unused, unused, stopping, lambda text: None, NOBODY)
    assert jvm.returncode == -signal.SIGKILL
    assert stopping.number == signal.SIGTERM
