"""`lakebroker` in processes that one process forks, which has imported what commands need: an import takes longer than most of them do."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_gateway.cli.commands import MODULES

_COMMANDS = tuple(f"broker_gateway.cli.{module}" for module in sorted({*MODULES.values()}))
_PRELOADED = (
    "broker_gateway.cli.main",
    *_COMMANDS,
    "broker_gateway.app.startup",
    "broker_gateway.cli.questions.lake",
    "broker_gateway.cli.questions.brokers",
    "pydantic.types",
    "structured_streaming.embedded.engine",
    "structured_streaming.union.tables",
    "structured_streaming.maintenance.maintain",
    "structured_streaming.commit.upgrade",
    "deltalake",
    "duckdb",
)
_MOST_S = 120.0
"""That a command may take which ends by itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    status: int
    output: str
    errors: str


class Commands:
    """Runs `lakebroker` in `folder`; its answers to questions are `y`. The environment is this process's and `environment`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self.environment = folder, dict(environment)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))

    def run(self, words: list[str], standard_input: Path | None = None, **also: str) -> Outcome:
        """`words` begin behind `lakebroker`; `also` goes into its environment. A command that does not end in time is killed."""
        with tempfile.TemporaryDirectory(prefix="lakebroker-command-") as scratch:
            files = {name: Path(scratch) / name for name in ("output", "errors", "yes")}
            files["yes"].write_text("y\n")
            given = standard_input or files["yes"]
            arguments = (
                words,
                str(self._folder),
                self.environment | also,
                str(given),
                str(files["output"]),
                str(files["errors"]),
            )
            process = self._context.Process(target=_command, args=arguments)
            process.start()
            process.join(_MOST_S)
            if process.exitcode is None:
                process.kill()
                process.join()
            status = process.exitcode if process.exitcode is not None else -1
            return Outcome(status, *(files[name].read_text() for name in ("output", "errors")))


def _command(
    words: list[str], folder: str, environment: dict[str, str], given: str, output: str, errors: str
) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    for number, (path, flags) in enumerate(
        ((given, os.O_RDONLY), *((path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in (output, errors)))
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    from broker_gateway.cli.main import app

    run: Any = app
    try:
        run(words, prog_name="lakebroker")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
