"""What a JVM printed is kept as long as it may be asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from structured_streaming.errors import JvmEndedError, SparkStartError
from structured_streaming.jvm_output import jvm_output_to_file, output_end
from tests.support.waiting import LIMIT_S

_DYING = "import sys; print('Out of space in CodeCache', file=sys.stderr, flush=True); sys.exit(50)"


def test_a_jvm_that_ends_by_itself_says_why() -> None:
    with jvm_output_to_file():
        process = subprocess.Popen([sys.executable, "-c", _DYING])
    status = process.wait(LIMIT_S)
    assert str(JvmEndedError(status, output_end())) == (
        "Spark's JVM ended with status 50; its output ends: Out of space in CodeCache; what was committed stands"
    )
    assert "CodeCache" not in str(JvmEndedError(-9, output_end()))


def test_the_newest_one_is_heard() -> None:
    for number in (1, 2):
        with jvm_output_to_file():
            subprocess.run([sys.executable, "-c", f"print('one' * 3000, {number})"], check=True)
    assert output_end().endswith("one 2")
    assert len(output_end()) <= 3000


def test_one_that_does_not_start_says_why() -> None:
    with pytest.raises(
        SparkStartError, match=r"returned non-zero exit status 50\.\); its output ends: Out of space"
    ):
        _start()


@pytest.mark.parametrize(("home", "is_said"), [("", True), ("/a/jdk", False)])
def test_without_java_the_jdk_is_named(monkeypatch: pytest.MonkeyPatch, home: str, is_said: bool) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(SparkStartError, match="Spark did not start") as failed, jvm_output_to_file():
        raise RuntimeError("the gateway exited")
    assert ("it needs a JDK 17 or later" in str(failed.value)) == is_said


def _start() -> None:
    with jvm_output_to_file():
        subprocess.run([sys.executable, "-c", _DYING], check=True)
