"""The version of the code that runs."""

from __future__ import annotations

from importlib.metadata import version

RUNNING = version("lakebroker")
"""As it was when this was imported, whatever is installed in its place later."""
