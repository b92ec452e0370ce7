"""Commands as in `tests.support.brokers.one_process`, of which `maintain` of a catalog looks at few of the lake's tables: each takes Spark
seconds, and all are alike to it. One of them has files to put together.
"""

from __future__ import annotations

from structured_streaming.maintenance import in_catalog
from structured_streaming.tables import MESSAGES, QUARANTINE, TABLES
from tests.support.brokers import one_process

FEW = {table.name: TABLES[table.name] for table in (MESSAGES, QUARANTINE)}

if __name__ == "__main__":
    in_catalog.TABLES = FEW
    one_process.main()
