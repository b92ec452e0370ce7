"""What a service knows of a call beside its request, and how calls without a Status fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])


@dataclass(slots=True)
class CallContext:
    """`peer` is `ip:port` (`[ip]:port` for IPv6), `remaining_s` what is left of the deadline (None: no deadline)."""

    metadata: Mapping[str, str]
    peer: str
    remaining_s: float | None
    local_endpoint: tuple[str, int]

    @property
    def loopback(self) -> bool:
        """Whether the peer is on this host's loopback interface (or a Unix socket)."""
        return self.peer.startswith(("127.", "[::1]", "unix"))


class RpcError(Exception):
    """Fails a call with a gRPC status; `code` is the status's name, such as NOT_FOUND."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def takes_bytes(method: C) -> C:
    """Marks a method that is given its request's bytes, and fails with RpcError when they are no request."""
    method.takes_bytes = True  # type: ignore[attr-defined]
    return method
