"""Logging: readable lines on a terminal, JSON lines by option; both on standard error."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(log_format: str, level: str, broker: str = "") -> None:
    """`log_format` is `text` or `json`, `level` a standard level name. With `broker`, every line names it.

    May be called again; what has a logger already follows.
    """

    def name_broker(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["broker"] = broker
        return event

    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([name_broker] if broker else []),
            *([structlog.processors.format_exc_info] if log_format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
