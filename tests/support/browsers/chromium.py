"""Debian's Chromium, headless, driven by Playwright: it finds loopback alone, and tells what a page tried beyond that."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Error, Page, Request, WebSocket, expect, sync_playwright

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT, ProcessError
from lakebroker_testing.programs import output_of
from tests.support.waiting import LIMIT_S, wait_until

_PACKAGE = "chromium"
_CACHE = ROOT / ".cache" / "chromium"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--expose-gc",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_OVERTAKEN = ("net::ERR_ABORTED", "is interrupted by another navigation")
_WAIT_MS = 1000 * LIMIT_S
"""For whatever a test waits for, on a busy machine."""


@dataclass
class Opened:
    """A tab. `left` are requests that would have left this machine, `errors` what the page's scripts complained of."""

    page: Page
    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def goto(self, url: str) -> None:
        """Opens a page. One that was without a connection for long loads itself again, which may overtake its being left, with an
        error or without."""
        wait_until(lambda: self._gone_to(url), url)

    def _gone_to(self, url: str) -> bool:
        try:
            self.page.goto(url)
        except Error as error:
            if not any(each in error.message for each in _OVERTAKEN):
                raise
        return urlsplit(self.page.url).path == urlsplit(url).path

    def check(self) -> None:
        """Nothing left this machine, nothing was refused by the page's policy, no script failed."""
        assert self.left == []
        assert self.errors == []


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Raises ProcessError where there is none, and none can be had."""
    program = _program()
    expect.set_options(timeout=_WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Browser, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Opened]:
    """A tab of a profile of its own."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        timezone_id="UTC",
    )
    try:
        context.set_default_timeout(_WAIT_MS)
        tab = Opened(context.new_page())

        def seen(request: Request | WebSocket) -> None:
            if urlsplit(request.url).hostname not in ("127.0.0.1", None):
                tab.left.append(request.url)

        # not a route, which would take the browser its cache
        context.on("request", seen)
        tab.page.on("websocket", seen)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.on(
            "console",
            lambda line: tab.errors.append(line.text) if "Content Security Policy" in line.text else None,
        )
        yield tab
    finally:
        context.close()


def _program() -> str:
    found = shutil.which(_PACKAGE)
    if found is not None:
        return found
    if shutil.which("apt-get") is None:
        raise ProcessError(
            "chromium is not on the PATH, and there is no apt-get to install it with: install Chromium"
        )
    with filled_once(_CACHE, _PACKAGE) as missing:
        if missing:
            try:
                output_of(["apt-get", "install", "-y", "--no-install-recommends", _PACKAGE], cwd=Path("/"))
            except ProcessError:  # its lists are old, or there are none
                output_of(["apt-get", "update"], cwd=Path("/"))
                output_of(["apt-get", "install", "-y", "--no-install-recommends", _PACKAGE], cwd=Path("/"))
    found = shutil.which(_PACKAGE)
    if found is None:
        raise ProcessError(
            f"apt-get installed {_PACKAGE}, and it is not on the PATH; {_CACHE} says it is complete"
        )
    return found
