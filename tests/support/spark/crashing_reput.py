"""A reput that is killed after a step of a commit (`commit/sink.py`): run by `test_reput_crash.py` and others.

Arguments: store folder, lake location, sink, step ("" for none), bytes a batch; then, where they are given, how often the
step comes until then, who dies (driver, jvm, or both at once), and after how many seconds.
A line for each batch: its number, and up to where the log was reported.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from pyspark import SparkContext

from structured_streaming.commit.report import BatchReport
from structured_streaming.destination import FolderDestination, SparkDestination
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions


class Death:
    """Comes after a step, in time."""

    def __init__(self, step: str, times: int, who: str, delay_s: float) -> None:
        self._step, self._left, self._who, self._delay_s = step, times, who, delay_s
        self._counting = threading.Lock()
        self._coming: threading.Thread | None = None

    def after(self, step: str) -> None:
        with self._counting:
            self._left -= step == self._step
            if step != self._step or self._left:
                return
            self._coming = threading.Thread(target=self._come)
            self._coming.start()
        if not self._delay_s:
            self._coming.join()

    def await_it(self) -> None:
        """It comes even where all was done before."""
        if self._coming is not None:
            self._coming.join()

    def _come(self) -> None:
        time.sleep(self._delay_s)
        gateway = SparkContext._gateway
        if self._who != "driver" and gateway is not None:
            gateway.proc.kill()
        if self._who != "jvm" or gateway is None:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    store, lake, sink, step, max_bytes, *more = sys.argv[1:]
    times, who, delay_s = more or ("2", "driver", "0")  # the second batch: there is progress to fall back to
    death = Death(step, int(times), who, float(delay_s))
    options = ReputOptions(lake, store=store, once=bool(step), max_bytes=int(max_bytes), sink=sink)
    destination = SparkDestination if sink == "spark" else FolderDestination

    def tell(report: BatchReport) -> None:
        print(report.batch, *report.ends.values(), flush=True)

    try:
        run_reput(options, tell, destination=destination(options, death.after))
    finally:
        death.await_it()


if __name__ == "__main__":
    main()
