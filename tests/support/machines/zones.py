"""A process whose local time is not UTC."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def local_time(zone: str) -> Iterator[None]:
    """Of this process, and of those that it starts meanwhile."""
    try:
        with patch.dict(os.environ, TZ=zone):
            time.tzset()
            yield
    finally:
        time.tzset()
