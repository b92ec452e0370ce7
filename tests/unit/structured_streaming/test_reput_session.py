"""The session of the reput: its addresses, its error for workers without lakebroker, and how long it waits for the end of a JVM."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from structured_streaming.errors import CutShortError, LakeError
from structured_streaming.provided_session import provided_session
from structured_streaming.reput_query import cause
from structured_streaming.reput_session import (
    addresses_of,
    expect_end_of_jvm,
    jvm_ends,
    sends_in_plaintext,
)
from structured_streaming.stopping import Stopping

LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@pytest.mark.parametrize(
    ("master", "driver_host", "settings"),
    [
        ("local[2]", "", LOOPBACK),
        ("local", "10.0.0.1", LOOPBACK),
        ("spark://h:7077", "", {}),
        ("spark://h:7077", "10.0.0.1", {"spark.driver.host": "10.0.0.1"}),
        ("yarn", "driver.example", {"spark.driver.host": "driver.example"}),
    ],
)
def test_only_a_local_master_stays_on_loopback(
    master: str, driver_host: str, settings: dict[str, str]
) -> None:
    assert addresses_of(master, driver_host) == settings


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({"spark.master": "local[2]"}, False),
        ({"spark.master": "local-cluster[2,1,1024]"}, False),
        ({"spark.master": "spark://h:7077"}, True),
        ({"spark.master": "spark://h:7077", "spark.network.crypto.enabled": "false"}, True),
        ({"spark.master": "spark://h:7077", "spark.network.crypto.enabled": "true"}, False),
        ({"spark.master": "yarn", "spark.ssl.rpc.enabled": "true"}, False),
    ],
)
def test_other_hosts_get_the_token_in_plaintext_unless_spark_encrypts(
    settings: dict[str, str], plain: bool
) -> None:
    assert sends_in_plaintext(settings) is plain


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(LakeError, match="does not run over Spark Connect"):
        provided_session()


def test_workers_without_lakebroker_are_told_of() -> None:
    report = "Traceback\nModuleNotFoundError: No module named 'structured_streaming'\n\nJVM stacktrace:\n"
    assert cause(report) == (
        "Spark's workers have no Python module structured_streaming: install lakebroker there with its extra cluster, "
        "and name the Python that has it in PYSPARK_PYTHON before Spark starts"
    )


class EndsWhenGivenTime(subprocess.Popen[bytes]):
    """A process that waits for its input, which ends as soon as somebody has time to wait for the process."""

    def wait(self, timeout: float | None = None) -> int:
        if timeout != 0 and self.stdin is not None:
            self.stdin.close()
        return super().wait(timeout)


@pytest.mark.parametrize(
    ("reason", "is_given_time"),
    [
        (Py4JNetworkError("broken"), True),
        (CutShortError("of the 2 files, Spark returned 1"), True),
        (OSError("no space left"), False),
    ],
)
def test_a_jvm_is_given_time_to_end_where_a_connection_to_it_broke(
    monkeypatch: pytest.MonkeyPatch, reason: Exception, is_given_time: bool
) -> None:
    monkeypatch.setattr("structured_streaming.reput_session._ENDS_S", 0.0)
    error = LakeError("the batch failed")
    error.__cause__ = reason
    with EndsWhenGivenTime(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as jvm:
        assert jvm_ends(jvm, error, no_signal()) is is_given_time


def no_signal() -> Stopping:
    """Of a program that keeps its handlers of signals."""
    stopping = Stopping()
    stopping.restore()
    return stopping


def test_a_signal_ends_the_wait_for_the_end_of_a_jvm() -> None:
    """It comes within the first look."""
    stopping = no_signal()

    def wait(timeout: float) -> int:
        assert not stopping.is_set()
        stopping.number = signal.SIGTERM
        raise subprocess.TimeoutExpired("java", timeout)

    jvm: Any = SimpleNamespace(returncode=None, wait=wait)
    assert jvm_ends(jvm, Py4JNetworkError("broken"), stopping)


def test_an_error_that_is_raised_from_one_that_it_caused_is_gone_through_once() -> None:
    error, caused = LakeError("the batch failed"), LakeError("start again")
    error.__cause__, caused.__cause__ = caused, error
    assert not jvm_ends(None, error, no_signal())


@pytest.mark.parametrize("ours", [True, False])
def test_a_thread_that_waited_for_our_jvm_may_say_later_that_its_connection_broke(
    caplog: pytest.LogCaptureFixture, ours: bool
) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace())
    ended = threading.Event()

    def fail() -> None:
        """As py4j tells of a failure: in its own code, to the root logger."""
        code = compile("import logging; logging.error('a connection broke')", "py4j/java_gateway.py", "exec")
        exec(code, {})

    def wait_and_fail() -> None:
        ended.wait()
        fail()

    undo = expect_end_of_jvm(session, lambda _: True, ours=ours)
    late = threading.Thread(target=wait_and_fail)
    late.start()
    fail()
    assert not caplog.messages
    undo()
    ended.set()
    late.join()
    assert caplog.messages == ([] if ours else ["a connection broke"])
    fail()
    logging.getLogger().error("of something else")
    assert caplog.messages[-2:] == ["a connection broke", "of something else"]
