"""Moved; imports from here go soon."""

from lakebroker_testing.logs import HOST, written

__all__ = ["HOST", "written"]
