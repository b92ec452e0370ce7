"""The console's pages. NiceGUI is imported here and in `server.py` alone."""

from __future__ import annotations

from broker_gateway.cli.console.pages import dead_letters, groups, message, overview, tasks, topics
from broker_gateway.cli.console.server import Console


def register(console: Console) -> None:
    """Makes them known to the page's library."""
    for page in (overview, topics, groups, message, dead_letters, tasks):
        page.register(console)
