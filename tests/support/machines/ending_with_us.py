"""Processes that a killed test run leaves behind would go on: `end_with_us` is for `preexec_fn`."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Found before there is a process to call it in."""


def end_with_us() -> None:
    """The kernel kills the process when the thread that started it ends: of a test, the main one."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
