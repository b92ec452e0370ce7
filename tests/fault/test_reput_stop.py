"""What a run says that ends before it has read everything: a signal came, a broker never answers. Whole processes: `test_reput_jvm.py`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.logs import written
from structured_streaming import reput_query
from structured_streaming.commit.report import BatchReport
from structured_streaming.errors import LakeError, StoppedError
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.streamed import stream
from tests.support.peers.relay import Relay
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONGEST_WAIT_S", "SIGNAL_S"):
        monkeypatch.setattr(reput_query, name, 0.1)
    monkeypatch.setattr("structured_streaming.reput._REACHED_S", LIMIT_S)


def stop_at_once(number: signal.Signals) -> Callable[[BatchReport], None]:
    """Has this process get a signal when the first batch is committed; the next one waits until it was noted."""

    def reported(report: BatchReport) -> None:
        if report.batch == 1:
            stopping: Any = signal.getsignal(number)
            os.kill(os.getpid(), number)
            wait_until(stopping.__self__.is_set)

    return reported


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=LONG)])
def test_a_run_that_was_to_end_by_itself_says_what_it_reached(tmp_path: Path, number: signal.Signals) -> None:
    store, lake = written(tmp_path / "store", "broker-a", 4000), tmp_path / "lake"
    options = ReputOptions(str(lake), store=str(store), max_bytes=1 << 18, once=True)
    reached = f"stopped by {number.name} before everything was read: the lake {lake} is at "
    with pytest.raises(StoppedError, match=f"{re.escape(reached)}.* of broker-a") as stopped:
        run_reput(options, stop_at_once(number))
    assert stopped.value.number == number
    stream(store, lake, 1 << 30)
    assert assert_exact(lake, store)["messages"] == 4000


@pytest.mark.usefixtures("spark")
def test_a_run_that_could_not_read_all_says_so(tmp_path: Path) -> None:
    store, lake = written(tmp_path / "store", "broker-a", 500), tmp_path / "lake"
    with Relay("", silent=True) as silent:
        options = ReputOptions(str(lake), store=str(store), brokers=silent.address, once=True)
        with pytest.raises(LakeError, match=f"not everything was read: .*{silent.address}"):
            run_reput(options)
    assert assert_exact(lake, store)["messages"] == 500
