"""The console's pages. NiceGUI is imported here and in `server.py` alone."""

from __future__ import annotations

from broker_gateway.cli.console.gate import MOST_TABS, Refusal
from broker_gateway.cli.console.pages import dead_letters, groups, message, overview, tasks, topics
from broker_gateway.cli.console.pages.parts import PAGES
from broker_gateway.cli.console.server import Console

_OF_LIBRARY = ("/_nicegui/", "/_nicegui_ws/socket.io/", "/favicon.ico")
_COMES_S = 20.0
"""How long a page that was built waits for its tab, where there are many."""


def register(console: Console) -> None:
    """Makes them known to the page's library."""
    for page in (overview, topics, groups, message, dead_letters, tasks):
        page.register(console)


def refusal(path: str) -> Refusal:
    """Why nothing is asked there: there is no page, or more were asked for than tabs came for them. A page costs memory and time from
    when it is built."""
    from nicegui import Client

    if path.startswith(_OF_LIBRARY):
        return None
    if path not in {to for to, _ in PAGES}:
        return 404, "there is no such page"
    if len(Client.instances) >= MOST_TABS:
        Client.prune_instances(client_age_threshold=_COMES_S)
    if len(Client.instances) >= 2 * MOST_TABS:
        return 503, "too many pages were asked for whose tabs did not come: try again in some seconds"
    return None
