"""Commands as in `tests.support.brokers.one_process`, of which `maintain` of a catalog looks at few of the lake's tables."""

from __future__ import annotations

from structured_streaming.maintenance import in_catalog
from tests.support.brokers import one_process
from tests.support.lakes.few_tables import MAINTAINED

if __name__ == "__main__":
    in_catalog.TABLES = MAINTAINED
    one_process.main()
