"""Who gets an answer of the console, and who does not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, MutableMapping
from typing import Any
from urllib.parse import urlencode

import pytest

from broker_gateway.cli.console import gate
from broker_gateway.cli.console.gate import MOST_TABS, App, Gate, Refusal, Rules, Scope
from broker_gateway.cli.console.names import hosts_of

HOSTS = hosts_of("127.0.0.1", 8090)
OPEN = Rules(HOSTS, "", tls=False, behind_proxy=False)
TOKEN = "0123456789abcdef-secret"
CLOSED = OPEN._replace(token=TOKEN)
Sent = list[MutableMapping[str, Any]]


async def page(scope: Any, receive: Any, send: Any) -> None:
    """What stands behind the gate."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-page", b"1")]})
    await send({"type": "http.response.body", "body": b"the page"})


def gate_of(app: App, rules: Rules, refusal: Refusal = None) -> Gate:
    return Gate(app, rules, lambda path: refusal)


def asked(
    at: Gate,
    path: str = "/",
    kind: str = "http",
    method: str = "GET",
    body: bytes = b"",
    parts: Iterator[bytes] = iter(()),
    **headers: str,
) -> Sent:
    """`parts`: of a body, in place of one in one piece."""
    given = {"host": "127.0.0.1:8090", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": kind,
        "path": path,
        "method": method,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    sent: Sent = []

    async def receive() -> MutableMapping[str, Any]:
        part = next(parts, None)
        return {"type": "http.request", "body": body if part is None else part, "more_body": part is not None}

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    asyncio.run(at(scope, receive, send))
    return sent


def status(sent: Sent) -> int:
    return int(sent[0]["status"])


def header(sent: Sent, name: str) -> str:
    return dict(sent[0]["headers"]).get(name.encode(), b"").decode()


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "LOCALHOST:8090", "[::1]:8090"])
def test_a_request_that_names_this_machine_is_answered_with_headers_that_keep_the_page_to_itself(
    host: str,
) -> None:
    sent = asked(gate_of(page, OPEN), host=host)
    assert status(sent) == 200
    policy = header(sent, "content-security-policy")
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert header(sent, "x-content-type-options") == "nosniff"
    assert header(sent, "x-page") == "1"


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8090", "127.0.0.1", "127.0.0.1:8091", "127.0.0.1.evil.example:8090"],
)
def test_a_name_that_was_pointed_at_this_address_gets_nothing(host: str) -> None:
    assert status(asked(gate_of(page, OPEN), host=host)) == 421
    (closed,) = asked(gate_of(page, OPEN), kind="websocket", host=host)
    assert closed["type"] == "websocket.close"


def test_another_page_opens_no_websocket_and_changes_nothing() -> None:
    at = gate_of(page, OPEN)
    assert asked(at, kind="websocket", origin="http://127.0.0.1:8090")[0]["type"] == "websocket.accept"
    assert asked(at, kind="websocket")[0]["type"] == "websocket.accept"
    for origin in (
        "http://evil.example",
        "http://127.0.0.1:9999",
        "null",
        "http://127.0.0.1:8090.evil.example",
    ):
        assert asked(at, kind="websocket", origin=origin)[0]["type"] == "websocket.close"
        assert status(asked(at, method="POST", origin=origin)) == 403
        assert status(asked(at, origin=origin)) == 403
    assert status(asked(at, origin="http://127.0.0.1:8090")) == 200


def test_what_is_no_origin_is_another_page() -> None:
    assert status(asked(gate_of(page, OPEN), method="POST", origin="http://[")) == 403


def test_another_page_loads_nothing_and_may_have_a_link() -> None:
    at = gate_of(page, OPEN)
    for site in ("cross-site", "same-site"):
        assert status(asked(at, sec_fetch_site=site, sec_fetch_mode="no-cors")) == 403
        assert status(asked(at, sec_fetch_site=site, sec_fetch_mode="navigate")) == 200
    assert status(asked(at, sec_fetch_site="same-origin", sec_fetch_mode="cors")) == 200


def test_a_request_names_one_host() -> None:
    headers = [(b"host", b"evil.example"), (b"host", b"127.0.0.1:8090")]
    sent: Sent = []

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    scope = {"type": "http", "path": "/", "method": "GET", "headers": headers}
    asyncio.run(gate_of(page, OPEN)(scope, None, send))  # type: ignore[arg-type]
    assert status(sent) == 421


def test_cookies_of_any_length_cost_no_time_and_do_not_get_further() -> None:
    hidden: list[Any] = []

    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        hidden.extend(scope["headers"])
        await page(scope, receive, send)

    long = 'lakebroker_console="' + "\\" * 16_000 + '"'  # a minute of http.cookies
    assert status(asked(gate_of(page, CLOSED), cookie=long)) == 401
    assert status(asked(gate_of(inner, OPEN), cookie=long, x_forwarded_prefix="https://evil.example")) == 200
    assert {name for name, _ in hidden} == {b"host"}


def test_what_builds_no_page_is_refused_behind_the_token() -> None:
    assert status(asked(gate_of(page, OPEN, (404, "there is no such page")), "/other")) == 404
    assert status(asked(gate_of(page, CLOSED, (404, "there is no such page")), "/other")) == 401
    assert status(asked(gate_of(page, CLOSED, (404, "there is no such page")), "/login")) == 200


def test_a_websocket_is_for_the_pages_alone() -> None:
    (closed,) = asked(gate_of(page, OPEN, (404, "there is no such page")), "/other", kind="websocket")
    assert closed["type"] == "websocket.close"


def test_behind_a_proxy_any_host_is_taken_and_an_origin_has_to_be_of_the_same_one() -> None:
    at = gate_of(page, OPEN._replace(behind_proxy=True))
    assert status(asked(at, host="my-app.example")) == 200
    forwarded = {"host": "inner:8000", "x_forwarded_host": "my-app.example"}
    assert (
        asked(at, kind="websocket", origin="https://my-app.example", **forwarded)[0]["type"]
        == "websocket.accept"
    )
    assert (
        asked(at, kind="websocket", origin="https://evil.example", **forwarded)[0]["type"]
        == "websocket.close"
    )


@pytest.mark.parametrize("length", ["1048577", "-1", "x", "٣"])
def test_a_request_that_is_too_long_or_says_no_length_is_refused(length: str) -> None:
    if not length.isascii():
        length = "\xb2"
    assert status(asked(gate_of(page, OPEN), content_length=length)) == 413


@pytest.mark.parametrize("path", ["/", "/login"])
def test_a_body_that_says_no_length_is_refused_when_it_is_too_long(path: str) -> None:
    read = 0

    async def reads_it_all(scope: Any, receive: Any, send: Any) -> None:
        nonlocal read
        while (event := await receive()).get("more_body"):
            read += len(event["body"])
        if event["type"] == "http.disconnect" and path == "/":
            raise ConnectionError("as libraries do")
        await page(scope, receive, send)

    parts = iter([b"x" * 1000] * 1_048)
    rules = CLOSED if path == "/login" else OPEN
    shown = {"transfer_encoding": "chunked", "method": "POST", "path": path}
    assert status(asked(gate_of(reads_it_all, OPEN), parts=parts, **shown)) == 200
    assert read == 1_048_000
    endless = itertools.repeat(b"x" * 1000)
    refused = asked(gate_of(reads_it_all, rules), parts=endless, **shown)
    assert (status(refused), header(refused, "connection"), len(refused)) == (413, "close", 2)


def test_without_the_token_there_is_a_login_page_alone() -> None:
    at = gate_of(page, CLOSED)
    to_login = asked(at, accept="text/html")
    assert (status(to_login), header(to_login, "location")) == (303, "/login")
    assert status(asked(at, "/_nicegui/x.js")) == 401
    assert asked(at, kind="websocket")[0]["type"] == "websocket.close"
    login = asked(at, "/login")
    assert status(login) == 200
    assert TOKEN.encode() not in login[1]["body"]


def test_who_shows_the_token_gets_a_cookie_that_opens_the_page() -> None:
    at = gate_of(page, CLOSED)
    form = urlencode({"token": TOKEN}).encode()
    opened = asked(at, "/login", method="POST", body=form, origin="http://127.0.0.1:8090")
    assert (status(opened), header(opened, "location")) == (303, "/")
    cookie = header(opened, "set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    shown = cookie.partition(";")[0]
    assert status(asked(at, cookie=shown)) == 200
    assert asked(at, kind="websocket", cookie=shown)[0]["type"] == "websocket.accept"
    assert status(asked(gate_of(page, CLOSED), cookie=shown)) == 401, (
        "after a start the cookie is another one"
    )
    assert status(asked(at, authorization=f"Bearer {TOKEN}")) == 200
    for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}"):
        assert status(asked(at, authorization=wrong)) == 401
    assert status(asked(at, cookie='lakebroker_console="')) == 401


def test_a_wrong_token_takes_its_time_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(gate.asyncio, "sleep", wait)
    form = urlencode({"token": "<b>wrong"}).encode()
    sent = asked(gate_of(page, CLOSED), "/login", method="POST", body=form)
    assert status(sent) == 401
    assert b"<b>wrong" not in sent[1]["body"]
    assert waited == [1.0]
    assert header(sent, "set-cookie") == ""


def test_behind_tls_the_cookie_is_for_tls_alone() -> None:
    form = urlencode({"token": TOKEN}).encode()
    assert "Secure" in header(
        asked(gate_of(page, CLOSED._replace(tls=True)), "/login", method="POST", body=form), "set-cookie"
    )


def test_there_is_an_end_to_tabs() -> None:
    async def run() -> list[str]:
        leave = asyncio.Event()

        async def tab(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "websocket.accept"})
            await leave.wait()

        at, kinds = gate_of(tab, OPEN), list[str]()

        async def open_one() -> None:
            async def send(event: MutableMapping[str, Any]) -> None:
                kinds.append(event["type"])

            headers = [(b"host", b"127.0.0.1:8090")]
            await at({"type": "websocket", "path": "/", "headers": headers}, None, send)  # type: ignore[arg-type]

        tabs = [asyncio.create_task(open_one()) for _ in range(MOST_TABS)]
        await asyncio.sleep(0)  # each of them runs until it waits
        await open_one()
        leave.set()
        await asyncio.gather(*tabs)
        await open_one()
        return kinds

    kinds = asyncio.run(run())
    assert kinds[MOST_TABS] == "websocket.close"
    assert kinds.count("websocket.accept") == MOST_TABS + 1


def test_names_of_an_address() -> None:
    assert hosts_of("10.1.2.3", 443) == {"10.1.2.3:443", "10.1.2.3"}
    assert hosts_of("::1", 8090) == hosts_of("0.0.0.0", 8090) == hosts_of("::", 8090) == HOSTS


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("console.example", 200),
        ("console.example:8443", 200),
        ("CONSOLE.example:8090", 200),
        ("[2001:db8::7]:8090", 200),
        ("a.inner.example:8090", 200),
        ("127.0.0.1:8090", 200),
        ("a.b.inner.example:8090", 421),
        ("inner.example", 421),
        ("evil.example:8090", 421),
        ("console.example:8090:8090", 421),
        ("*.inner.example", 421),
        ("", 421),
    ],
)
def test_the_names_of_the_certificate_are_answered(host: str, answer: int) -> None:
    names = frozenset({"console.example", "[2001:db8::7]", "*.inner.example"})
    assert status(asked(gate_of(page, OPEN._replace(tls=True, names=names)), host=host)) == answer


def test_rules_are_shown_without_the_token() -> None:
    assert "8090" in repr(CLOSED)
    assert TOKEN not in repr(CLOSED)
