"""Who gets an answer: in front of everything that the page's library serves, HTTP and websocket.

| checked | refused |
|---|---|
| Host header: one, of the address that the console listens on, or a name of this machine, or of the console's certificate | a page of elsewhere whose name was pointed at this address (DNS rebinding): 421 |
| Origin, where there is one; of what has none, who loads it (Sec-Fetch-Site) | another page, but for a link to this one: 403 |
| cookie or bearer token, where there is a token | the login page, or 401 |
| websockets under way | beyond the limit: 503 |
| length of a request, as it says or as it comes (chunked) | beyond 1 MiB: 413 |
| path | no page: 404; no room for one more page: 503 |

The page's library sees neither cookies, whose reading takes time that grows with the square of their length, nor a prefix that
a client made up.

Behind a proxy that signs users in (`behind_proxy`), any Host is accepted. Origin must still name the same host.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from broker_gateway.cli.console.names import names

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refusal = tuple[int, str] | None
"""Status and sentence, or None: it may pass."""
MOST_TABS = 50
"""Websockets at a time."""
_MOST_BYTES = 1 << 20
_TOO_LONG = f"a request has at most {_MOST_BYTES:,} bytes"
_TEXT = "text/plain; charset=utf-8"
_COOKIE = "lakebroker_console"
_LOGIN = "/login"
_WRONG_S = 1.0
"""What a wrong token costs; one at a time."""
_MOST_WAITING = 20
_MOST_COOKIES = 100
"""Of a request; cookies of all ports of a name come along."""
_OTHERS = frozenset({"cross-site", "same-site"})
"""Of Sec-Fetch-Site, which browsers set: pages of other names, and of other ports of this one."""
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors {}"
)
"""Vue compiles its templates in the browser, which is what 'unsafe-inline' and 'unsafe-eval' are for; nothing is loaded from, or
sent to, anywhere else."""


class Rules(NamedTuple):
    """Of the gate. `hosts`: host:port that requests may name; `token`: that has to be shown, empty for none; `names`: of the
    certificate, which requests may name with any port."""

    hosts: frozenset[str]
    token: str
    tls: bool
    behind_proxy: bool
    names: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        """Without the token."""
        return f"Rules({', '.join(f'{name}={value!r}' for name, value in self._asdict().items() if name != 'token')})"


class Gate:
    """An ASGI application in front of another."""

    def __init__(self, app: App, rules: Rules, refusal: Callable[[str], Refusal]) -> None:
        """`refusal`: of a path, by who builds the pages."""
        self._app = app
        self._rules = rules
        self._refusal = refusal
        self._session = secrets.token_urlsafe(32)
        """What the cookie of who showed the token has; another one after each start."""
        self._tabs = 0
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        refused = self._refused(scope, headers)
        if refused is not None:
            await _refuse(scope, send, *refused)
        elif scope["type"] == "websocket":
            await self._tab(scope, receive, send)
        else:
            await self._bounded(scope, receive, send)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        """Status, sentence, and where else to go."""
        host = headers.get("host", "").lower()
        several = sum(name.lower() == b"host" for name, _ in scope["headers"]) > 1
        if several or not self._named(host):
            wanted = ", ".join(sorted(self._rules.hosts | self._rules.names))
            return 421, f"this console answers at {wanted} only", ""
        if not self._same_origin(headers, host):
            return 403, "this request comes from another page", ""
        if headers.get("sec-fetch-site") in _OTHERS and headers.get("sec-fetch-mode") != "navigate":
            return 403, "another page loads nothing of this one", ""
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 20 or int(length) > _MOST_BYTES:
            return 413, _TOO_LONG, ""
        if self._rules.token and scope["path"] != _LOGIN and not self._known(headers):
            page = scope["type"] == "http" and "text/html" in headers.get("accept", "")
            return (303, "", _LOGIN) if page else (401, "show the console's token", "")
        if scope["path"] == _LOGIN and self._rules.token:
            return None
        refusal = self._refusal(scope["path"])
        return refusal and (*refusal, "")

    def _named(self, host: str) -> bool:
        return self._rules.behind_proxy or host in self._rules.hosts or names(self._rules.names, host)

    def _same_origin(self, headers: dict[str, str], host: str) -> bool:
        origin = headers.get("origin")
        if origin is None:  # no browser: it shows the token, where there is one
            return True
        hosts = {host}
        if self._rules.behind_proxy:
            hosts.add(headers.get("x-forwarded-host", host).lower())
        try:
            return urlsplit(origin).netloc.lower() in hosts
        except ValueError:  # an address in brackets that is none
            return False

    def _known(self, headers: dict[str, str]) -> bool:
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return _same(shown.strip(), self._rules.token)
        for pair in headers.get("cookie", "").split(";", _MOST_COOKIES):
            name, _, value = pair.strip().partition("=")
            if name == _COOKIE and _same(value, self._session):
                return True
        return False

    def _bare(self, scope: Scope) -> Scope:
        """As the page's library gets it."""
        hidden = {b"cookie"} if self._rules.behind_proxy else {b"cookie", b"x-forwarded-prefix"}
        kept = [(name, value) for name, value in scope["headers"] if name.lower() not in hidden]
        return {**scope, "headers": kept}

    async def _tab(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tabs >= MOST_TABS:
            await _refuse(scope, send, 503, f"{MOST_TABS} tabs are open already: close one", "")
            return
        self._tabs += 1
        try:
            await self._app(self._bare(scope), receive, send)
        finally:
            self._tabs -= 1

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """With an end to what it sends."""
        bounded = _Bounded(receive, send)
        try:
            if scope["path"] == _LOGIN and self._rules.token:
                await self._login(scope, bounded.receive, bounded.send)
            else:
                answering = _with_headers(bounded.send, self._headers())
                await self._app(self._bare(scope), bounded.receive, answering)
        except Exception:
            if not bounded.beyond:
                raise
        if bounded.beyond and not bounded.begun:
            await _answer(send, 413, _TOO_LONG, {"content-type": _TEXT, "connection": "close"})

    async def _login(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await _answer(send, 200, _login_page(""), self._headers())
            return
        body = await _body(receive)
        given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        if _same(given, self._rules.token):
            secure = "; Secure" if self._rules.tls or self._rules.behind_proxy else ""
            cookie = f"{_COOKIE}={self._session}; Path=/; HttpOnly; SameSite=Strict{secure}"
            await _answer(send, 303, "", {**self._headers(), "location": "/", "set-cookie": cookie})
            return
        if self._waiting >= _MOST_WAITING:
            await _answer(send, 429, _login_page("Too many wrong tokens at a time."), self._headers())
            return
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(_WRONG_S)
        finally:
            self._waiting -= 1
        await _answer(send, 401, _login_page("This is not the token."), self._headers())

    def _headers(self) -> dict[str, str]:
        ancestors = "'self' https://*.databricks.com" if self._rules.behind_proxy else "'none'"
        return {
            "content-security-policy": _POLICY.format(ancestors),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }


class _Bounded:
    """A request whose body is cut off at the size that a request may have, and is `beyond` then. The page's answer to such a
    request is dropped, unless it has `begun`."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._left = _MOST_BYTES
        self.beyond = False
        self.begun = False

    async def receive(self) -> MutableMapping[str, Any]:
        if not self.beyond:
            event = await self._receive()
            self._left -= len(event.get("body", b""))
            self.beyond = self._left < 0
        return {"type": "http.disconnect"} if self.beyond else event

    async def send(self, event: MutableMapping[str, Any]) -> None:
        if self.beyond and not self.begun:
            return
        self.begun = True
        await self._send(event)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    async def sent(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in headers.items()]
            event = {**event, "headers": [*event.get("headers", ()), *own]}
        await send(event)

    return sent


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        event = await receive()
        body += bytes(event.get("body", b""))
        if event["type"] != "http.request" or not event.get("more_body"):
            return body


async def _refuse(scope: Scope, send: Send, status: int, why: str, to: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": why})  # before it is accepted: 403
        return
    headers = {"location": to} if to else {"content-type": _TEXT}
    await _answer(send, status, why, headers)


async def _answer(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    given = {"content-type": "text/html; charset=utf-8", "cache-control": "no-store", **headers}
    listed = [(name.encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": text.encode()})


def _login_page(said: str) -> str:
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>lakebroker console</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 90vh; margin: 0 }}
form {{ display: grid; gap: .75rem; width: min(22rem, 90vw) }} input, button {{ font: inherit; padding: .5rem .75rem }}
</style></head><body><form method="post" action="{_LOGIN}"><strong>lakebroker console</strong>
<label for="token">Token (the file of --page-token-file)</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button>Open</button><span role="alert">{html.escape(said)}</span></form></body></html>"""
