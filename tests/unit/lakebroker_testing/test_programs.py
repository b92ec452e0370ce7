"""A program that is being started is nobody else's to end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from lakebroker_testing.programs import ProcessError, until_ready


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_breaks_into_a_start_ends_the_program(tmp_path: Path, error: type[BaseException]) -> None:
    process = subprocess.Popen(["sleep", "1000"])

    def ready() -> None:
        raise error

    with pytest.raises(error):
        until_ready("sleep", process, tmp_path / "log", ready)
    assert process.returncode == -signal.SIGKILL


def test_a_program_that_ends_says_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no such option\n")
    with pytest.raises(ProcessError, match="true did not start: no such option"):
        until_ready("true", subprocess.Popen(["true"]), log, lambda: None)
