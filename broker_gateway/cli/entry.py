"""Where the command `lakebroker` begins: ctrl-C ends it without a trace, also while modules are loaded.

In a process that has a Spark session already (a platform's job, a program under spark-submit) it leaves signals alone, returns
when the command succeeded, and raises CommandError when it failed: SystemExit would end, or fail, the driver even with status 0.
"""

from __future__ import annotations

# of which `signal` makes enumerations: that takes longer than all else up to here
import _signal  # type: ignore[import-not-found]
import os
import sys

if (
    (__name__ == "__main__" or os.path.basename(sys.argv[0]) == "lakebroker")
    and "PYSPARK_GATEWAY_PORT" not in os.environ
    and "pyspark" not in sys.modules
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
):  # a process of its own: before anything else is imported
    try:
        if os.getpid() == 1:  # of a container: the kernel keeps signals from it that end others by default
            for _number in (_signal.SIGINT, _signal.SIGTERM):
                _signal.signal(_number, lambda number, _frame: os._exit(128 + number))
        else:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    except ValueError:  # another thread than the main one
        pass

import signal
import threading

from structured_streaming.provided_session import is_hosted
from structured_streaming.without_pandas import leave_pandas_out


class CommandError(Exception):
    """A command that failed in another one's process; it says why."""


def run() -> None:
    """Runs the command. Commands that have something to end take signals themselves."""
    hosted = is_hosted()
    if not hosted:
        leave_pandas_out()
    alone = not hosted and threading.current_thread() is threading.main_thread()
    if alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # else whoever started it ignores them
    from broker_gateway.cli.main import app

    try:
        app()
    except SystemExit as ended:
        if not ended.code:
            return
        if not hosted:
            raise
        said = getattr(ended.__context__, "message", "")
        command = " ".join(["lakebroker", *sys.argv[1:2]])
        raise CommandError(
            f"{command} failed with status {ended.code}: {said or 'see standard error'}"
        ) from None


if __name__ == "__main__":
    run()
