"""A reput that kills itself after a table's commit, or is killed by its JVM: run by `test_reput_crash.py`.

Arguments: store folder, lake folder, table after whose commit to die ("" for never), bytes a batch.
"""

from __future__ import annotations

import os
import signal
import sys

from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.lake import create_tables
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions


def main() -> None:
    store, lake, fatal, max_bytes = sys.argv[1:]
    create_tables(lake)
    commits = 0

    def after(table: str) -> None:
        nonlocal commits
        commits += table == fatal
        if table == fatal and commits == 2:  # the second batch: there is progress to fall back to
            os.kill(os.getpid(), signal.SIGKILL)

    options = ReputOptions(lake, store=store, once=bool(fatal), max_bytes=int(max_bytes))
    run_reput(options, lambda report: print(report.batch, flush=True), sink=DeltaCommitSink(lake, after))


if __name__ == "__main__":
    main()
