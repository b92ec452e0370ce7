"""Commands of `lakebroker` at a gateway, in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.gateway import Gateway


def lakebroker(*arguments: str) -> str:
    """What a command prints, run in this process."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def create(gateway: Gateway, topic: str, queues: int = 2, *more: str) -> None:
    run(gateway, "topic", "create", topic, "--queues", str(queues), *more)


def run(gateway: Gateway, *arguments: str, status: int = 0) -> Result:
    """A command at a gateway, to its end, which must have the status."""
    done = CliRunner().invoke(app, [*arguments, "--gateway", gateway.address])
    assert done.exit_code == status, done.output
    return done


def answer(gateway: Gateway, *arguments: str) -> Any:
    return json.loads(run(gateway, *arguments, "--json").stdout)


def said(gateway: Gateway, *arguments: str, status: int = 1) -> str:
    done = run(gateway, *arguments, status=status)
    assert done.stdout == ""
    assert done.stderr.startswith("lakebroker: ")
    return done.stderr
