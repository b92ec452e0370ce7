"""Pictures of the console's pages for the documents, taken while traffic runs. They are looked at by people; here they are taken."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from lakebroker_pb.apache.rocketmq.v2.definition_pb2 import Message
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.messages import message, send_request
from structured_streaming.lake import create_tables
from tests.suite.evidence import LONG
from tests.support.browsers.chromium import chromium, opened
from tests.support.browsers.console_process import ConsoleProcess
from tests.support.lakes.maintained import reput

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
TRAFFIC_S = 102.0
_AGREED = """() => {
    const count = each => Number(each.innerText.replace(/[^0-9]/g, ''));
    const cells = [...document.querySelectorAll('[data-testid=queues] tbody td:nth-child(6)')].map(count);
    return count(document.querySelector('[data-testid=lag-now]')) === cells.reduce((sum, each) => sum + each, 0);
}"""
"""The queues' lag is asked for less often than the sum."""
_QUEUES = {"defaultTopicQueueNums": "2"}
_PLACES = ("Nantes", "Oslo", "Porto", "Riga")


class Traffic:
    """Orders of which `billing` settles each, and `audit` falls behind and catches up; payments of which some are given up."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sent = 0

    def order(self) -> None:
        """One more, with its payment."""
        at = self._sent
        self._sent += 1
        body = {"order": at, "city": _PLACES[at % 4], "total": 12.5 + at * 7 % 90, "items": at % 5 + 1}
        self._send("orders", f"order-{at}", json.dumps(body), "new")
        self._send("payments", f"payment-{at}", json.dumps({"order": at, "total": body["total"]}), "card")

    def settle(self, topic: str, group: str, most: int = 32) -> list[Message]:
        """What was settled."""
        _, received = self._client.receive(topic, group, batch=most)
        if received:
            self._client.ack(topic, group, *received)
        return received

    def give_up(self, topic: str, group: str, most: int) -> int:
        """So many go to the dead letters of the group."""
        _, received = self._client.receive(topic, group, batch=most)
        for each in received:
            self._client.dead_letter(topic, group, each, 1)
        return len(received)

    def _send(self, topic: str, key: str, body: str, tag: str) -> None:
        sent = message(topic, body.encode(), {"source": "shop"}, keys=[key], tag=tag)
        self._client.call("SendMessage", send_request(sent))


@pytest.mark.timeout(1800)
@LONG
def test_pictures_of_the_pages_are_small(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    create_tables(str(lake))
    options = {**OPTIONS, **_QUEUES, "lakeLocation": str(lake), "flushDiskType": "SYNC_FLUSH"}
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)
        traffic = Traffic(client)
        for _ in range(12):
            traffic.order()
        dead = 0
        while dead < 4:
            dead += traffic.give_up("payments", "billing", 2)
        for topic, group in (("orders", "billing"), ("orders", "audit"), ("payments", "audit")):
            while not traffic.settle(topic, group):
                pass
        reput(gateway.store, lake)
        given = ("--gateway", gateway.address, "--lake", "./lake")
        with ConsoleProcess(tmp_path, "console", *given, cwd=tmp_path) as console, chromium() as browser:
            began = time.monotonic()
            with opened(browser, 1280, 760) as tab:
                tab.goto(f"{console.url}groups?group=audit")
                while (passed := time.monotonic() - began) < TRAFFIC_S:
                    traffic.order()
                    traffic.settle("orders", "billing")
                    if passed % 30 > 18:
                        traffic.settle("orders", "audit")
                        traffic.settle("payments", "audit", 8)
                reput(gateway.store, lake)
                expect(tab.page.get_by_test_id("queues").locator("tbody tr")).to_have_count(4)
                tab.page.wait_for_function(_AGREED)
                tab.page.screenshot(path=picture("group"))
            for name, path, part, height in (
                ("overview", "", "freshness", 860),
                ("message", "message?key=order-1", "trace", 760),
                ("dead-letters", "dead-letters?group=billing", "letters", 460),
            ):
                with opened(browser, 1280, height) as tab:
                    tab.goto(f"{console.url}{path}")
                    tab.page.get_by_test_id(part).locator("tbody tr td:nth-child(2)").first.wait_for()
                    if not path:
                        expect(tab.page.get_by_test_id("topics")).to_have_text("2")
                        tab.page.get_by_test_id("rates").locator("canvas").wait_for()
                        tab.page.wait_for_timeout(3_000)  # its chart is drawn
                    tab.page.screenshot(path=picture(name))
                    tab.check()
        client.close()
    for name in ("group", "overview", "message", "dead-letters"):
        assert 5_000 < picture(name).stat().st_size < MOST_BYTES


def picture(name: str) -> Path:
    """Where it is kept."""
    IMAGES.mkdir(exist_ok=True)
    return IMAGES / f"console-{name}.png"
