"""The console in a real browser: what it finds, what moves, what it asks before it acts, and what hostile text does not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request
from structured_streaming.lake import create_tables
from tests.interop.chromium import Opened, chromium, opened
from tests.interop.console_process import ConsoleProcess
from tests.lake_broker import dispatch

HOSTILE = (
    "</script><script>window.hacked = 1</script>\"'`${window.hacked = 1}{{window.hacked = 1}}\u202eright\x07"
)
SEEN = HOSTILE.replace("\u202e", "\\u202e").replace("\x07", "\\x07")
IMAGE = "<img src=x onerror='window.hacked = 1'>"
LARGE = 1_000_000
DEAD = 3


class World:
    """A gateway with messages, a lake that has the first of them, and consoles over both."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self.gateway = gateway
        self.client = Client(gateway.address)
        self.lake = folder / "lake"
        create_tables(str(self.lake))
        self.send(b'{"total": 7}', ["order-1"], tag="new")
        self.send(HOSTILE.encode(), ["hostile", IMAGE.replace(" ", "/")], {IMAGE: HOSTILE}, tag="t")
        self.send(HOSTILE.encode() + b"x" * (LARGE - len(HOSTILE.encode())), ["large"])
        for number in range(DEAD):
            self.client.call(
                "SendMessage", send_request(message("payments", b"%d" % number, keys=[f"p{number}"]))
            )
        dead = 0
        while dead < DEAD:
            _, received = self.client.receive("payments", "billing")
            for each in received:
                self.client.dead_letter("payments", "billing", each, 1)
            dead += len(received)
        _, received = self.client.receive("orders", "audit")
        self.client.ack("orders", "audit", *received)
        dispatch(self.lake, gateway.store)
        self.send(b"newer than the lake", ["order-2"])

    def send(
        self, body: bytes, keys: list[str], properties: dict[str, str] | None = None, **system: str
    ) -> None:
        self.client.call(
            "SendMessage", send_request(message("orders", body, properties or {}, keys=keys, **system))
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[World]:
    with Gateway(
        folder / "gateway", patient=True, **OPTIONS, flushDiskType="SYNC_FLUSH", defaultTopicQueueNums="1"
    ) as gateway:
        made = World(folder, gateway)
        yield made
        made.client.close()


@pytest.fixture(scope="module")
def console(world: World, folder: Path) -> Iterator[str]:
    given = ("--gateway", world.gateway.address, "--lake", str(world.lake))
    with ConsoleProcess(folder, "console", *given) as process:
        yield process.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def tab(browser: Browser) -> Iterator[Opened]:
    with opened(browser) as found:
        yield found
        found.check()
        assert found.page.evaluate("window.hacked") is None


def rows(page: Page, table: str) -> list[list[str]]:
    found = page.get_by_test_id(table).locator("tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("td").all()] for row in found]


def test_a_search_by_key_finds_the_message_with_its_trace_and_what_is_newer_than_the_lake(
    tab: Opened, console: str
) -> None:
    page = tab.page
    page.goto(f"{console}message")
    page.get_by_test_id("key").fill("order-1")
    page.get_by_test_id("find").click()
    expect(page.get_by_test_id("body")).to_have_text('{"total": 7}')
    expect(page.get_by_test_id("facts")).to_contain_text("keys order-1")
    assert [row[1] for row in rows(page, "trace")] == ["stored", "delivered", "acked"]
    assert {row[2] for row in rows(page, "trace")} == {"", "audit"}
    page.get_by_test_id("key").fill("order-2")
    page.get_by_test_id("key").press("Enter")
    expect(page.get_by_test_id("body")).to_have_text("newer than the lake")
    page.get_by_test_id("key").fill("nobody")
    page.get_by_test_id("find").click()
    expect(page.get_by_test_id("said").first).to_contain_text("no message in any topic of")
    page.goto(f"{console}message?key=order-1&topic=other")
    expect(page.get_by_test_id("said").first).to_contain_text("no message in topic other")


@pytest.mark.parametrize("key", ["large"])
def test_hostile_text_is_shown_and_runs_nothing(tab: Opened, console: str, key: str) -> None:
    page = tab.page
    page.goto(f"{console}message?key={key}")
    body = page.get_by_test_id("body")
    expect(body).to_contain_text("window.hacked")
    text = body.inner_text()
    assert text.startswith(SEEN)
    assert "\u202e" not in page.content()
    if key == "large":
        expect(page.get_by_test_id("size")).to_have_text(
            "1,000,000 bytes, of which the first 65,536 are shown"
        )
        assert len(text) < 70_000


@pytest.mark.parametrize("path", ["message?key={}&topic={}", "dead-letters?group={}"])
def test_a_hostile_address_is_shown_and_runs_nothing(tab: Opened, console: str, path: str) -> None:
    text = quote(HOSTILE)
    tab.page.goto(console + path.replace("{}", text))
    expect(tab.page.locator(".lb-bad, [data-testid=said]").locator("visible=true").first).to_be_visible()
    if not path.startswith("message"):
        expect(tab.page.locator(".lb-title").first).to_contain_text(SEEN)


def test_a_console_that_only_reads_shows_dead_letters_and_offers_no_replay(tab: Opened, console: str) -> None:
    page = tab.page
    page.goto(f"{console}dead-letters")
    page.get_by_test_id("dead-groups").get_by_role("link", name="billing").click()
    expect(page.get_by_test_id("letters-count")).to_have_text(f"{DEAD} dead letters")
    found = rows(page, "letters")
    assert {row[2] for row in found} == {"payments"}
    assert {row[3] for row in found} == {"p0", "p1", "p2"}
    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.get_by_text("Replay")).to_have_count(0)
    expect(page.get_by_test_id("letters").get_by_role("checkbox")).to_have_count(0)
