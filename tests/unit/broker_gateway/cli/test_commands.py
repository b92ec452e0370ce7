"""The table of commands: what is read when it is asked for is there, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import broker_gateway.cli
from broker_gateway.cli.commands import MODULES, registered

CLI = Path(broker_gateway.cli.__file__).parent


def test_every_module_that_registers_commands_is_there_with_all_of_them() -> None:
    found = {
        ".".join(file.relative_to(CLI).with_suffix("").parts)
        for file in CLI.rglob("*.py")
        if "\ndef register(app: typer.Typer)" in file.read_text()
    }
    assert found == set(MODULES.values())
    assert {name: module for module in found for name in registered(module)} == MODULES


def test_a_command_is_run_without_the_modules_of_the_others() -> None:
    script = """
import sys
from broker_gateway.cli.main import app
app(["namesrv", "--help"], standalone_mode=False)
print(*sorted(name for name in sys.modules if name.startswith("broker_gateway.cli.")), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {f"broker_gateway.cli.{name}" for name in MODULES.values()}
    assert modules & set(done.stdout.splitlines()) == {"broker_gateway.cli.namesrv_command"}
