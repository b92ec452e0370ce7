"""Messages that an official client receives, of a server that may have just started."""

from __future__ import annotations

from collections.abc import Collection

from lakebroker_testing.official_client import OfficialClient, when_started
from tests.support.waiting import wait_until


def receive_all(official: OfficialClient, count: int, beside: Collection[str] = ()) -> list[str]:
    """Ids of messages, each acknowledged, until `count` are there, not counting those `beside` that may come too, and a receive
    behind them gave nothing."""
    found: list[str] = []

    def all_there() -> bool:
        messages = when_started(official, "receive", max=32, invisible_s=120)["messages"]
        if messages:
            errors = official.call("ack", ids=[each["id"] for each in messages])["errors"]
            assert errors == {}, errors
            found.extend(each["id"] for each in messages)
        return len([each for each in found if each not in beside]) >= count and not messages

    wait_until(all_there, lambda: f"the end of {count} messages; those that came: {found};")
    return found
