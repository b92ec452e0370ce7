"""The console over 100,000 topics and 10,000 groups: the time to the first page, and what the tab takes. With pictures of its pages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from playwright.sync_api import expect

from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.messages import message, send_request
from tests.evidence import EVIDENCE, LONG
from tests.interop.chromium import chromium, opened
from tests.interop.console_process import ConsoleProcess

TOPICS, GROUPS = (100_000, 10_000) if EVIDENCE else (3_000, 300)
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "docs" / "evidence" / "console.jsonl"
_AT_A_TIME = 64
_PAGES = {
    "overview": "",
    "topics": "topics?",
    "groups": "groups?group=billing",
    "message": "message?key=order-3&topic=orders",
}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "gateway", patient=True, **OPTIONS) as made:
        fill(made)
        yield made


@pytest.mark.timeout(1800 if EVIDENCE else 900)
@pytest.mark.parametrize("pictures", [False, pytest.param(True, marks=LONG)])
def test_of_very_many_names_a_tab_gets_a_page(gateway: Gateway, tmp_path: Path, pictures: bool) -> None:
    with (
        ConsoleProcess(tmp_path, "console", "--gateway", gateway.address) as console,
        chromium() as browser,
        opened(browser) as tab,
    ):
        page = tab.page
        page.goto(console.url)
        expect(page.get_by_test_id("topics")).to_have_text(f"{TOPICS + 1:,}")
        seconds = {}
        for name, path, part in (
            ("overview", "", "brokers"),
            ("topics", "topics", "topics"),
            ("groups", "groups", "groups"),
        ):
            began = time.monotonic()
            page.goto(f"{console.url}{path}")
            page.get_by_test_id(part).locator("tbody tr").first.wait_for()
            seconds[name] = round(time.monotonic() - began, 2)
            if name != "overview":
                assert page.get_by_test_id(part).locator("tbody tr").count() == 25
        began = time.monotonic()
        page.get_by_test_id("search").fill(f"g-{GROUPS - 1:05d}")
        expect(page.get_by_test_id("count")).to_have_text(f"1 to 1 of 1 found of {GROUPS + 1:,}")
        seconds["search"] = round(time.monotonic() - began, 2)
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"]
        received = page.evaluate(
            "performance.getEntriesByType('resource').reduce((sum, each) => sum + each.decodedBodySize, 0)"
        )
        assert heap < 100 << 20
        if pictures:
            for name, path in _PAGES.items():
                for width, height, kind in ((1280, 800, ""), (390, 844, "-narrow")):
                    with opened(browser, width, height) as shown:
                        shown.page.goto(console.url + path)
                        shown.page.wait_for_load_state("networkidle")
                        shown.page.wait_for_timeout(3_000)
                        IMAGES.mkdir(exist_ok=True)
                        shown.page.screenshot(path=IMAGES / f"console-{name}{kind}.png")
            with RESULTS.open("a") as results:
                figures = {"topics": TOPICS, "groups": GROUPS, "seconds": seconds, "tab_heap_mb": round(heap / 2**20, 1),
                           "assets_mb": round(received / 2**20, 1), "console_rss_mb": resident_mb(console.process.pid)}  # fmt: skip
                results.write(json.dumps(figures) + "\n")
        tab.check()


def fill(gateway: Gateway) -> None:
    """Topics and groups without anything, and one of each with messages."""
    with grpc.insecure_channel(gateway.address) as channel:

        def put(kind: str, requests: Iterator[object]) -> None:
            call = channel.unary_unary(
                f"/lakebroker.admin.v1.AdminService/Put{kind}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=getattr(pb, f"Put{kind}Response").FromString,
            )
            under_way: list[grpc.Future] = []
            for request in requests:
                under_way.append(call.future(request, timeout=120))
                if len(under_way) >= _AT_A_TIME:
                    under_way.pop(0).result()
            for each in under_way:
                each.result()

        put(
            "Topic",
            (
                pb.PutTopicRequest(topic=pb.Topic(name=f"topic-{number:06d}", queues=1))
                for number in range(TOPICS)
            ),
        )
        put("Group", (pb.PutGroupRequest(group=pb.Group(name=f"g-{number:05d}")) for number in range(GROUPS)))
    client = Client(gateway.address)
    for number in range(50):
        client.call(
            "SendMessage",
            send_request(message("orders", b'{"order": %d}' % number, keys=[f"order-{number}"])),
        )
    _, received = client.receive("orders", "billing")
    client.ack("orders", "billing", *received)
    client.close()


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return round(kib / 1024, 1)
