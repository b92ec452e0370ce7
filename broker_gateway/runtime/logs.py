"""Logging: readable lines on a terminal, JSON lines by option; both on standard error.

A line that cannot be written is lost, and nothing else: how many were is said once lines can be written again.
Tracebacks have no values of variables: bodies of messages and tokens are among them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from broker_gateway.runtime.line_output import LineOutput
from broker_gateway.runtime.printable import printable

_outputs: list[LineOutput] = []
"""The one in use: what it lost is told by the one that follows it."""


def configure_logs(log_format: str, level: str, broker: str = "") -> None:
    """`log_format` is `text` or `json`, `level` a standard level name. With `broker`, every line names it.

    May be called again; what has a logger already follows.
    """

    def name_broker(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["broker"] = broker
        return event

    as_json = log_format == "json"
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([name_broker] if broker else []),
        *([structlog.processors.format_exc_info] if as_json else [_printable]),
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
        ),
    ]

    def lost(count: int, why: str) -> str:
        line: Any = {"event": "log lines could not be written and are lost", "lines": count, "error": why}
        for processor in processors:
            line = processor(None, "warning", line)
        return str(line)

    output = LineOutput(sys.stderr, lost, _outputs[-1] if _outputs else None)
    _outputs[:] = [output]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=False,
    )


def _printable(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Names and addresses come from clients: what they hold is not for the terminal to obey."""
    return {
        key: printable(value, keep="\n" if key == "stack" else "") if isinstance(value, str) else value
        for key, value in event.items()
    }


def say(line: str) -> None:
    """Prints a line on standard output, such as the boot line; one that cannot be written is logged."""
    if not LineOutput(sys.stdout).line(line):
        structlog.get_logger(__name__).warning("standard output cannot be written", line=line)
