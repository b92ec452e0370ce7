"""Programs of others, run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lakebroker_testing.gateway import ProcessError


def output_of(
    command: Sequence[str],
    named: str = "",
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """What a program prints. Raises ProcessError with the end of its output, under its name, where it fails or does not end in time."""
    named = named or " ".join(command)
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, timeout=timeout_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:  # which has bytes, whatever was asked for
        printed = b"".join(each for each in (error.stdout, error.stderr) if each).decode(errors="replace")
        raise ProcessError(f"{named} did not end in {timeout_s:.0f} s: {printed[-2000:]}") from error
    if done.returncode:
        raise ProcessError(f"{named}: {done.stdout[-1500:]}{done.stderr[-2000:]}")
    return done.stdout
