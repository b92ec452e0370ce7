"""Where the command `lakebroker` begins: ctrl-C ends it without a trace, also while modules are loaded."""

from __future__ import annotations

import signal


def run() -> None:
    """Runs the command. Commands that have something to end take signals themselves."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started it ignores them
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from broker_gateway.cli.main import app

    app()


if __name__ == "__main__":
    run()
