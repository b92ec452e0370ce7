"""Who may call: those who show the token. It is asked for before anything of a request is read.

A client shows it as `Authorization: Bearer TOKEN`, or as the password of `Authorization: Basic`, with any name; drivers
that are given a name and a password send the latter to Handshake, and what that answers with their other calls.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    _Interceptor = grpc.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.ServerInterceptor

HEADER = "authorization"
_NO_TOKEN = "loopback"
"""What Handshake answers where no token is asked for; drivers want something to send."""


class Access(_Interceptor):
    """Refuses calls without the token; without one, all are taken."""

    def __init__(self, token: bytes | None) -> None:
        self._token = token

    def bearer(self) -> str:
        """What a client shows from its Handshake on."""
        return f"Bearer {_NO_TOKEN if self._token is None else self._token.decode()}"

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        if self._token is None or self._allows(handler_call_details.invocation_metadata):
            return continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)

    def _allows(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        assert self._token is not None
        shown = [value for name, value in metadata if name == HEADER]
        if len(shown) != 1 or not isinstance(shown[0], str):
            return False
        scheme, _, rest = shown[0].partition(" ")
        return hmac.compare_digest(_secret(scheme.lower(), rest.strip()), self._token)


def _secret(scheme: str, shown: str) -> bytes:
    """The token of a header; empty where it has none."""
    if scheme == "bearer":
        return shown.encode()
    if scheme == "basic":
        try:
            return base64.b64decode(shown + "=" * (-len(shown) % 4)).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def _refuse(_requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the call carries no token, or another one than this server has; give the token of its --token-file, as a bearer "
        "token or as the password of any user",
    )
    yield b""
