"""What a process of the embedded engine may allocate, so that single values are bounded as well.

DuckDB's `memory_limit` counts what its buffers hold, not what an expression makes of a row: `repeat('x', 3000000000)` took 6 GB
under a limit of 256 MB, and no interrupt ends it. So the process gets a limit of its own, RLIMIT_DATA: what it has by now, the
memory of the statements, and a margin. An allocation beyond fails, DuckDB makes an error of that, and the next statement works.
RLIMIT_AS would count mapped files, too.

What is reserved counts, although nothing of it is used. The extension `delta` starts some hundred threads, with a stack of 2 MiB
each, to read a few tables; the stacks have room of their own, or a statement that needs nothing could end the process. Arrow's own
allocator would reserve 1 GiB, so it takes the system's.

DuckDB's allocator keeps what was freed, which would count on: after one statement at the limit, Python had no memory to import a
module. `ALLOCATOR` has it give memory back at once; sorting and grouping a million rows took the same time.

The extension `delta` is of another make: where it cannot allocate, the process ends. That takes a statement that fills the memory
in small steps while another one opens a table. `lakebroker sql` runs one at a time; what serves several has the engine in a
process of its own (`apart.py`).
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATOR = {
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""For the environment of the process, before DuckDB and Arrow are loaded."""
_MARGIN_BYTES = 512 << 20
"""For results on their way, and what else is no row."""
_STACKS_BYTES = 512 * (2 << 20)
"""Of as many threads as a runtime of Rust's tokio starts at most for calls that block."""
_STATUS = "/proc/self/status"


@contextmanager
def bounded_memory(memory_bytes: int) -> Iterator[None]:
    """Limits how much memory this process may allocate within the block: its present size, `memory_bytes`, room for thread
    stacks, and a margin. Nothing is limited where there is no /proc."""
    try:
        with open(_STATUS) as status:
            facts = dict(line.split(":", 1) for line in status)
    except FileNotFoundError:
        yield
        return
    there = int(facts["VmData"].split()[0]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = there + memory_bytes + _STACKS_BYTES + _MARGIN_BYTES
    known = [wanted, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
