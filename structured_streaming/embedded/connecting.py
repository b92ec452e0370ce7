"""DuckDB databases as they begin, before they are given limits and closed off (`database.py`).

Loading the extension `delta` takes as long as a third of a short command: it may begin while Python's modules are loaded, so this one
imports little.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from importlib import resources

import duckdb

from structured_streaming.embedded.quoting import literal
from structured_streaming.errors import LakeError


def connecting(location: str) -> Future[duckdb.DuckDBPyConnection]:
    """A database for the lake at `location`, made in a thread of its own; whoever takes it closes it."""
    made = Future[duckdb.DuckDBPyConnection]()
    # what reads objects is no extension; a folder may be named as a URL, too (`storage/location.py`, which takes long to load)
    delta = "://" not in location or location.startswith("file://")
    # no daemon: a process that ended meanwhile would stop the thread within DuckDB, whose C++ then aborts the process (SIGABRT)
    threading.Thread(target=_connect, args=(made, delta), name="connecting").start()
    return made


def given_back(made: Future[duckdb.DuckDBPyConnection]) -> None:
    """Closes what was made, or is being made, once it is there."""
    made.add_done_callback(lambda done: None if done.exception() else done.result().close())


def _connect(made: Future[duckdb.DuckDBPyConnection], delta: bool) -> None:
    try:
        made.set_result(connected(delta=delta))
    except BaseException as error:
        made.set_exception(error)


def connected(*, delta: bool = False) -> duckdb.DuckDBPyConnection:
    """A database that is not locked yet; with the extension `delta` out of its package, which nothing is installed of. Raises
    LakeError."""
    connection = duckdb.connect(":memory:")
    try:
        if delta:
            package = resources.files("duckdb_extension_delta")
            file = package / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
            connection.execute(
                f"LOAD {literal(str(file))}"
            )  # lets other threads run, as load_extension does not
            # EXPLAIN ANALYZE fails with it where a table is read twice with one filter
            connection.execute("SET delta_scan_explain_files_filtered = false")
    except (duckdb.Error, OSError, ImportError) as error:
        connection.close()
        raise LakeError(
            f"DuckDB {duckdb.__version__} cannot load its extension delta ({error}); install the extra 'sql' of lakebroker "
            "again"
        ) from error
    return connection
