"""Errors at start, each with the original's exit code."""

from __future__ import annotations


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""

    exit_code = 255
    """-1 as the original's."""


class OptionError(StartError):
    """A bad option or configuration file."""

    exit_code = 253
    """-3 as the original's."""


class HostError(StartError):
    """Something on this host, such as a file, that the process needs and cannot use."""

    exit_code = 254
    """-2 as the original's."""


class ModeError(StartError):
    """Two modes that exclude each other."""

    exit_code = 252
    """-4 as the original's."""


def reason(error: Exception) -> str:
    """What an error says, for a message that names the file already."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
