"""The console in a real browser: what it finds, what moves, what it asks before it acts, and what hostile text does not do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from lakebroker_pb.apache.rocketmq.v2.definition_pb2 import OK
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request
from structured_streaming.lake import create_tables
from tests.suite.evidence import LONG
from tests.support.browsers.chromium import Opened, chromium, opened
from tests.support.browsers.console_process import ConsoleProcess
from tests.support.lakes.maintained import reput

HOSTILE = (
    "</script><script>window.hacked = 1</script>\"'`${window.hacked = 1}{{window.hacked = 1}}\u202eright\x07"
)
SEEN = HOSTILE.replace("\u202e", "\\u202e").replace("\x07", "\\x07")
VALUE = HOSTILE.replace("\x07", "")
"""Of a property: control characters are refused there."""
IMAGE = "<img src=x onerror='window.hacked = 1'>"
LARGE = 1_000_000
DEAD = 3
NARROW = 390
"""Pixels of a phone."""
_WIDTH = "document.documentElement.scrollWidth"
_POINTS = """() => {
    const chart = document.querySelector('[data-testid=lag]');
    if (!chart || !window.getElement || !getElement(Number(chart.id.slice(1)))?.chart) return [];  // not loaded yet
    const series = getElement(Number(chart.id.slice(1))).chart.getOption().series;
    return series.length ? series[0].data : [];
}"""


class World:
    """A gateway with messages, a lake that has the first of them, and consoles over both."""

    def __init__(self, folder: Path, gateway: Gateway) -> None:
        self.gateway = gateway
        self.client = Client(gateway.address)
        self.lake = folder / "lake"
        create_tables(str(self.lake))
        self.send(b'{"total": 7}', ["order-1"], tag="new")
        self.send(HOSTILE.encode(), ["hostile", IMAGE.replace(" ", "/")], {IMAGE: VALUE}, tag="t")
        self.send(HOSTILE.encode() + b"x" * (LARGE - len(HOSTILE.encode())), ["large"])
        for number in range(DEAD):
            self.send(b"%d" % number, [f"p{number}"], topic="payments")
        dead = 0
        while dead < DEAD:
            _, received = self.client.receive("payments", "billing")
            for each in received:
                self.client.dead_letter("payments", "billing", each, 1)
            dead += len(received)
        _, received = self.client.receive("orders", "audit")
        self.client.ack("orders", "audit", *received)
        reput(gateway.store, self.lake)
        self.send(b"newer than the lake", ["order-2"])

    def send(
        self,
        body: bytes,
        keys: list[str],
        properties: dict[str, str] | None = None,
        topic: str = "orders",
        **system: str,
    ) -> None:
        sent = message(topic, body, properties or {}, keys=keys, **system)
        answer = self.client.call("SendMessage", send_request(sent))
        assert answer.status.code == OK, answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[World]:
    with Gateway(
        folder / "gateway", **OPTIONS, flushDiskType="SYNC_FLUSH", defaultTopicQueueNums="1"
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


@pytest.fixture(scope="module")
def profile(browser: Browser) -> Iterator[Opened]:
    """A tab that has what every page loads after the first. A page keeps in it no more than its place and its look."""
    with opened(browser) as found:
        yield found


@pytest.fixture
def tab(profile: Opened) -> Iterator[Opened]:
    profile.left.clear()
    profile.errors.clear()
    yield profile
    profile.check()
    assert profile.page.evaluate("window.hacked") is None


def rows(page: Page, table: str) -> list[list[str]]:
    found = page.get_by_test_id(table).locator("tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("td").all()] for row in found]


def test_a_search_by_key_finds_the_message_with_its_trace_and_what_is_newer_than_the_lake(
    tab: Opened, console: str
) -> None:
    page = tab.page
    tab.goto(f"{console}message")
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
    tab.goto(f"{console}topics")
    page.get_by_test_id("topics").get_by_role("link", name="payments").click()
    expect(page.get_by_test_id("newest").locator("tbody tr")).to_have_count(DEAD)
    assert [row[5] for row in rows(page, "newest")] == ["p2", "p1", "p0"]
    page.get_by_test_id("newest").get_by_role("link").first.click()
    expect(page.get_by_test_id("copy")).to_have_text("billing")
    expect(page.get_by_test_id("trace")).to_have_count(1)
    tab.goto(f"{console}message?key=order-1&topic=other")
    expect(page.get_by_test_id("said").first).to_contain_text("no message in topic other")


def test_the_lag_of_a_group_moves_while_traffic_runs(tab: Opened, console: str, world: World) -> None:
    page = tab.page
    tab.goto(f"{console}groups")
    page.get_by_test_id("groups").get_by_role("link", name="audit").click()
    page.wait_for_function(f"({_POINTS})().length > 1")
    before = page.evaluate(f"({_POINTS})()")
    for number in range(20):
        world.send(b"more", [f"more-{number}"])
    page.wait_for_function(f"({_POINTS})().at(-1)[1] >= {before[-1][1] + 20}")
    after = page.evaluate(f"({_POINTS})()")
    assert after[-1][0] > before[-1][0]
    expect(page.get_by_test_id("lag-now")).to_have_text(f"now {after[-1][1]:,.0f}")
    expect(page.get_by_test_id("queues").locator("tbody td:nth-child(6)")).to_have_text(
        f"{after[-1][1]:,.0f}"
    )


@pytest.mark.parametrize("key", ["hostile", "large"])
def test_hostile_text_is_shown_and_runs_nothing(tab: Opened, console: str, key: str) -> None:
    page = tab.page
    tab.goto(f"{console}message?key={key}")
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
    else:
        assert rows(page, "properties") == [[IMAGE, VALUE.replace("\u202e", "\\u202e")]]
        expect(page.get_by_test_id("facts")).to_contain_text("hostile <img/src=x/onerror=")


@pytest.mark.parametrize("path", ["message?key={}&topic={}", "groups?group={}", "dead-letters?group={}"])
def test_a_hostile_address_is_shown_and_runs_nothing(tab: Opened, console: str, path: str) -> None:
    text = quote(HOSTILE)
    tab.goto(console + path.replace("{}", text))
    if path.startswith("message"):
        expect(tab.page.get_by_test_id("said").first).to_contain_text("no message in topic")
    else:
        expect(tab.page.locator(".lb-title").first).to_contain_text(SEEN)


def test_a_console_that_only_reads_shows_dead_letters_and_offers_no_replay(tab: Opened, console: str) -> None:
    page = tab.page
    tab.goto(f"{console}dead-letters")
    page.get_by_test_id("dead-groups").get_by_role("link", name="billing").click()
    expect(page.get_by_test_id("letters-count")).to_have_text(f"{DEAD} dead letters")
    found = rows(page, "letters")
    assert {row[2] for row in found} == {"payments"}
    assert {row[3] for row in found} == {"p0", "p1", "p2"}
    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.get_by_text("Replay")).to_have_count(0)
    expect(page.get_by_test_id("letters").get_by_role("checkbox")).to_have_count(0)


def test_replay_names_what_it_would_do_and_does_it_only_when_it_is_told_to(
    browser: Browser, world: World, folder: Path
) -> None:
    with (
        ConsoleProcess(folder, "replaying", "--gateway", world.gateway.address, "--allow-replay") as process,
        opened(browser) as tab,
    ):
        page = tab.page
        tab.goto(f"{process.url}dead-letters?group=billing")
        expect(page.get_by_test_id("letters").locator("tbody tr")).to_have_count(DEAD)
        page.get_by_test_id("replay-chosen").click()
        expect(page.get_by_test_id("letters-problem")).to_contain_text("choose dead letters first")
        page.get_by_test_id("replay-all").click()
        asked = page.get_by_test_id("confirm")
        expect(asked).to_contain_text(f"Send {DEAD} dead letters of billing again?")
        expect(asked).to_contain_text(f"{DEAD} to topic payments")
        asked.get_by_text("Cancel").click()
        expect(asked).to_have_count(0)
        press = page.get_by_test_id("replay-all")
        press.evaluate("button => { button.click(); button.click(); button.click() }")
        expect(asked).to_have_count(1)
        asked.get_by_text("Cancel").click()
        expect(asked).to_have_count(0)
        assert world.client.receive("payments", "billing")[1] == []
        page.get_by_test_id("letters").get_by_role("checkbox").nth(1).click()
        page.get_by_test_id("replay-chosen").click()
        expect(asked).to_contain_text("Send 1 dead letter of billing again?")
        page.get_by_test_id("confirm-send").click()
        expect(page.get_by_test_id("replayed")).to_contain_text("1 dead letter sent again")
        _, (again,) = world.client.receive("payments", "billing")
        assert again.user_properties["REPLAY_OF"]
        tab.check()
        assert process.stop() == 0


def test_on_a_phone_nothing_of_brokers_the_lake_and_tasks_is_cut_off_at_the_right(
    tab: Opened, console: str, world: World
) -> None:
    page = tab.page
    wide = page.viewport_size
    assert wide is not None
    page.set_viewport_size({"width": NARROW, "height": 844})
    try:
        tab.goto(console)
        expect(page.get_by_test_id("brokers").locator("tbody tr td").nth(1)).to_have_text(
            world.gateway.address
        )
        assert rows(page, "brokers")[0][0] == "broker-a"
        assert re.search(r"of .* GiB", rows(page, "brokers")[0][6])
        expect(page.get_by_test_id("freshness").get_by_text("broker-a")).to_be_visible()
        assert page.evaluate(_WIDTH) == NARROW
        tab.goto(f"{console}tasks")
        expect(page.get_by_test_id("tasks")).to_contain_text("retention")
        assert page.evaluate(_WIDTH) == NARROW
    finally:
        page.set_viewport_size(wide)


@LONG
def test_the_overview_shows_brokers_and_the_lake_and_says_when_the_broker_is_away(
    browser: Browser, folder: Path
) -> None:
    gateway = Gateway(folder / "going", **OPTIONS)
    gateway.start()
    try:
        with (
            ConsoleProcess(folder, "going", "--gateway", gateway.address) as process,
            opened(browser, NARROW, 844, "dark") as tab,
        ):
            page = tab.page
            tab.goto(process.url)
            expect(page.get_by_test_id("brokers").locator("tbody tr")).to_have_count(1)
            assert rows(page, "brokers")[0][:2] == ["broker-a", gateway.address]
            assert re.search(r"of .* GiB", rows(page, "brokers")[0][6])
            assert page.evaluate(_WIDTH) == NARROW, "nothing is cut off at the right"
            tab.goto(f"{process.url}tasks")
            expect(page.get_by_test_id("tasks")).to_contain_text("retention")
            gateway.kill()
            problem = page.get_by_test_id("problem")
            expect(problem).to_contain_text(f"no gateway at {gateway.address}: connection refused")
            expect(problem).to_contain_text("shown is what was known")
            tab.goto(process.url)
            expect(page.get_by_test_id("problem").first).to_contain_text("connection refused")
            assert rows(page, "brokers")[0][0] == "broker-a"
            tab.check()
    finally:
        gateway.kill()
