"""A store with records that count, at a given broker name and segment size."""

from lakebroker_testing.logs import HOST, written

__all__ = ["HOST", "written"]
