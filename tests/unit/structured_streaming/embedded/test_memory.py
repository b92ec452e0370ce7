"""What a process of the engine may allocate: see `structured_streaming/embedded/memory.py`."""

from __future__ import annotations

import os
import subprocess
import sys

from lakebroker_testing.gateway import ROOT
from structured_streaming.embedded.memory import ALLOCATOR

STATEMENT = """
import threading
import pyarrow
from structured_streaming.embedded.memory import bounded_memory

MEMORY = 1 << 30
with bounded_memory(MEMORY):
    kept = pyarrow.allocate_buffer(64)  # the first of this process
    threading.stack_size(2 << 20)
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait, daemon=True) for _ in range(400)]
    for each in threads:
        each.start()
    rows = bytearray(MEMORY)
    try:
        bytearray(2 * MEMORY)
    except MemoryError:
        print("bounded")
    ended.set()
"""


def test_what_is_reserved_and_not_used_leaves_the_statements_their_memory() -> None:
    environment = {**os.environ, **ALLOCATOR}
    done = subprocess.run(
        [sys.executable, "-c", STATEMENT], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("bounded\n", "", 0)
