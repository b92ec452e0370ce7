"""The commands by name, each read from its module when it is asked for.

All of them together take longer to import than most commands take to run, and a broker's start has use for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

MODULES = {
    "gateway": "gateway_command",
    "health": "health_command",
    "namesrv": "namesrv_command",
    "sidecar": "sidecar_command",
    "tasks": "admin_commands",
    "message": "message_commands",
    "trace": "message_commands",
    "lag": "lag_command",
    "send": "send_commands",
    "recall": "send_commands",
    "reput": "reput_command",
    "init": "init_command",
    "sql": "sql_command",
    "maintain": "maintain_commands",
    "erase": "erase_command",
    "serve": "serve_command",
    "console": "console.command",
    "topic": "admin_commands",
    "group": "admin_commands",
    "offset": "offset_commands",
    "subscription": "offset_commands",
    "client": "client_commands",
    "broker": "client_commands",
    "dlq": "dlq_commands",
    "lake": "maintain_commands",
    "store": "store_commands",
    "typed": "typed_commands",
}
"""Of `broker_gateway.cli`, whose `register` adds the command or group of commands; in the order of `--help`."""


class Commands(TyperGroup):
    """`lakebroker` itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Read()  # type: ignore[assignment] # it is only read


class _Read(Mapping[str, Any]):
    """By name; a value is there once its module was imported."""

    def __init__(self) -> None:
        self._read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            self._read |= registered(MODULES[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


def registered(module: str) -> dict[str, Any]:
    """What a module registers, by name."""
    part = typer.Typer()
    import_module(f"broker_gateway.cli.{module}").register(part)
    return dict(get_group(part).commands)
