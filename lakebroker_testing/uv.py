"""Virtual environments and packages by uv: seconds, where pip needs half a minute."""

from __future__ import annotations

import sys

from lakebroker_testing.programs import output_of

_MOST_S = 600.0


def uv(*arguments: str) -> str:
    """What uv prints. Raises ProcessError."""
    return output_of(
        [sys.executable, "-m", "uv", "--quiet", *arguments], f"uv {' '.join(arguments)}", timeout_s=_MOST_S
    )
