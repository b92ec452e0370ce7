"""Tables of a lake in a catalog that stand for the others: each takes Spark seconds, wherever a lake's tables are looked at, and they
are alike there.

Run as a program it is `tests.support.brokers.one_process`, whose `maintain` of a catalog looks at few of the tables."""

from __future__ import annotations

from structured_streaming.tables import MESSAGES, QUARANTINE, REMOVAL_ORDER, REPUT_PROGRESS, UPKEEP

MAINTAINED = {table.name: table for table in (MESSAGES, QUARANTINE)}
"""For OPTIMIZE and VACUUM: one has files to put together."""
IN_SCHEMA = MAINTAINED | {table.name: table for table in (*REMOVAL_ORDER, UPKEEP, REPUT_PROGRESS)}
"""For a schema: all with messages, which retention removes, and what decisions and instants are read from."""

if __name__ == "__main__":
    from structured_streaming.maintenance import in_catalog
    from tests.support.brokers import one_process

    in_catalog.TABLES = MAINTAINED
    one_process.main()
