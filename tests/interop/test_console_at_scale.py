"""The console over as many topics as a broker takes, and 10,000 groups: the time to the first page, and what the tab takes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import pytest
from playwright.sync_api import Browser, Page, expect

from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.gateway import ROOT, Gateway
from tests.suite.evidence import LONG
from tests.support.browsers.chromium import chromium, opened
from tests.support.browsers.console_process import ConsoleProcess

TOPICS, GROUPS = 99_900, 10_000
"""A broker takes 100,000 topics, with its own."""
RESULTS = ROOT / "docs" / "evidence" / "console.jsonl"
_AT_A_TIME = 64
_MOST_HEAP = 100 << 20
_PATIENCE_MS = 600_000
_TIMES = 5
_PAGES = (
    ("overview", "", "brokers", 1),
    ("topics", "topics", "topics", 25),
    ("groups", "groups", "groups", 25),
)
"""Name, path, table, and how many rows it then has."""


@pytest.mark.timeout(3600)
@LONG
def test_of_very_many_names_a_tab_gets_a_page(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        began = time.monotonic()
        fill(gateway)
        filled_s = time.monotonic() - began
        with (
            ConsoleProcess(tmp_path, "console", "--gateway", gateway.address) as console,
            chromium() as browser,
            opened(browser) as tab,
        ):
            page = tab.page
            began = time.monotonic()
            tab.goto(console.url)
            expect(page.get_by_test_id("topics")).to_have_text(f"{TOPICS:,}", timeout=_PATIENCE_MS)
            expect(page.get_by_test_id("consumer groups")).to_have_text(f"{GROUPS:,}")
            seconds = {"names known": time.monotonic() - began}
            for name, path, table, rows in _PAGES:
                seconds[name] = median(
                    first_seen(browser, f"{console.url}{path}", table, rows) for _ in range(_TIMES)
                )
            tab.goto(f"{console.url}groups")
            began = time.monotonic()
            page.get_by_test_id("search").fill(f"g-{GROUPS - 1:05d}")
            expect(page.get_by_test_id("count")).to_have_text(f"1 to 1 of 1 found of {GROUPS:,}")
            seconds["search"] = time.monotonic() - began
            heap = taken(page)
            assert heap < _MOST_HEAP
            figures = {
                "topics": TOPICS,
                "groups": GROUPS,
                "filled_s": round(filled_s, 1),
                "load": round(os.getloadavg()[0], 1),
                "seconds": {name: round(value, 2) for name, value in seconds.items()},
                "tab_heap_mb": round(heap / 2**20, 1),
                "tab_rss_mb": max(resident_mb(pid) for pid in renderers(browser)),
                "console_rss_mb": resident_mb(console.process.pid),
                "broker_rss_mb": resident_mb(gateway.process.pid),
            }
            with RESULTS.open("a") as results:
                results.write(json.dumps(figures) + "\n")
            tab.check()


def first_seen(browser: Browser, url: str, table: str, rows: int) -> float:
    """Seconds until a browser that has nothing of the console yet shows a page with the first row of a table."""
    with opened(browser) as tab:
        began = time.monotonic()
        tab.goto(url)
        tab.page.get_by_test_id(table).locator("tbody tr td:nth-child(2)").first.wait_for()
        took = time.monotonic() - began
        expect(tab.page.get_by_test_id(table).locator("tbody tr")).to_have_count(rows)
        return took


def renderers(browser: Browser) -> list[int]:
    """Processes of its tabs."""
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return [each["id"] for each in found if each["type"] == "renderer"]


def taken(page: Page) -> int:
    """Bytes of the tab's heap that are in use."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: int = session.send("Runtime.getHeapUsage")["usedSize"]
    return used


def fill(gateway: Gateway) -> None:
    """Topics and groups without anything."""
    with grpc.insecure_channel(gateway.address) as channel:
        put(
            channel,
            "Topic",
            (pb.PutTopicRequest(topic=pb.Topic(name=f"topic-{at:06d}", queues=1)) for at in range(TOPICS)),
        )
        put(
            channel,
            "Group",
            (pb.PutGroupRequest(group=pb.Group(name=f"g-{at:05d}")) for at in range(GROUPS)),
        )


def put(channel: grpc.Channel, kind: str, requests: Iterable[Any]) -> None:
    """Some at a time. Raises grpc.RpcError."""
    call = channel.unary_unary(
        f"/lakebroker.admin.v1.AdminService/Put{kind}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=getattr(pb, f"Put{kind}Response").FromString,
    )
    under_way: list[Any] = []
    for request in requests:
        under_way.append(call.future(request, timeout=120))
        if len(under_way) >= _AT_A_TIME:
            under_way.pop(0).result()
    for each in under_way:
        each.result()


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return round(kib / 1024, 1)
