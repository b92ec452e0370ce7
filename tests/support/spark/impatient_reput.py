"""`lakebroker`, whose reput waits less between two starts of a query, and tells of each in vain what is away."""

from __future__ import annotations

from broker_gateway.cli.main import app
from structured_streaming import absence, reput_query


def main() -> None:
    reput_query.LONGEST_WAIT_S = 0.2
    reput_query.SIGNAL_S = 0.1
    absence.TELL_S = 0.0
    app()


if __name__ == "__main__":
    main()
