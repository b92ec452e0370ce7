"""The package's extras: which packages of them something needs, and what is said where one is not installed.

Asking imports nothing. `tests/unit/test_extras.py` holds this table, `pyproject.toml` and the imports together.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple


class Needs(NamedTuple):
    """Packages that something cannot do without, by the names that they are imported by, and the extra that brings them."""

    extra: str
    packages: tuple[str, ...]
    besides: str = ""
    """What is said behind the remedy."""


BROKER = Needs(
    "broker",
    (
        "uvloop",
        "pydantic",
        "httpunk",
        "lark",
        "prometheus_client",
        "grpc_health",
        "grpc_reflection",
        "cryptography",
    ),
)
"""A gateway, a name server, a sidecar."""
BROKER_LAKE = Needs("broker", ("deltalake", "pyarrow"))
"""A gateway that reads a lake."""
LAKE = Needs("sql", ("deltalake", "pyarrow"))
"""What makes and looks after tables in a folder or an object store: each extra that reads a lake brings it."""
EMBEDDED = Needs("sql", ("duckdb", "duckdb_extension_delta", "deltalake", "pyarrow"))
"""SQL without Spark."""
FILTERS = Needs("sql", ("lark",))
"""SQL filters, asked of a lake's rows."""
SPARK = Needs("spark", ("pyspark",), "; it runs on a JDK 17 or later")
ON_SPARK = Needs("cluster", ("deltalake", "pyarrow", "prometheus_client"))
"""What runs on a Spark that is there."""
CONSOLE = Needs("console", ("nicegui", "fastapi", "uvicorn", "cryptography"))
"""The web page."""
ICEBERG = Needs("iceberg", ("pyiceberg",))
OBJECT_STORE = Needs(
    "sql", ("obstore",), " (on a broker's host the extra is broker, on a Spark cluster cluster)"
)
AVRO = Needs("sql", ("fastavro",), " (on a Spark cluster the extra is cluster)")


def lacking(what: str, *needs: Needs) -> str:
    """A sentence that says which package `what` lacks and how to install it; empty where all of them are there."""
    for each in needs:
        for package in each.packages:
            if find_spec(package) is None:
                return (
                    f"{what} needs {package}, which is not installed: pip install 'lakebroker[{each.extra}]'"
                    f"{each.besides}"
                )
    return ""
