"""What one broker of a host has the others do too: they share topics, groups and what is done to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from broker_gateway.config.registration import local_address
from broker_gateway.metadata.peers import Peers
from broker_gateway.transport.context import CallContext, RpcError

_TOLD = "x-lakebroker-told"
"""Metadata of a call that one broker of a host makes at another."""
_PEER_S = 10.0
_ANSWERS = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED"}
"""Codes of what a broker refuses itself; its text says what to do."""


class PeerCalls:
    """Calls of the other brokers of this host, on the address `bound`."""

    def __init__(self, peers: Peers, bound: str) -> None:
        self._peers = peers
        self._bound = bound

    async def tell(
        self,
        path: str,
        request: Message,
        context: CallContext,
        response_of: Callable[[bytes], Any] = bytes,
        timeout_s: float = _PEER_S,
    ) -> list[tuple[str, Any]]:
        """Does the same at the other brokers; what each answered. Nothing where one of them made this call. Raises RpcError."""
        if not self._peers.all or context.metadata.get(_TOLD):
            return []
        import grpc

        metadata = [(_TOLD, "1")]
        if (token := context.metadata.get("authorization")) is not None:
            metadata.append(("authorization", token))
        answers = []
        for peer in self._peers.all:
            async with grpc.aio.insecure_channel(local_address(self._bound, peer.grpc_port)) as channel:
                call = channel.unary_unary(
                    path,
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=response_of,
                )
                try:
                    answers.append((peer.name, await call(request, metadata=metadata, timeout=timeout_s)))
                except grpc.RpcError as error:
                    if error.code().name in _ANSWERS:
                        raise RpcError(
                            error.code().name, f"done here, refused by {peer.name}: {error.details()}"
                        ) from error
                    raise RpcError(
                        "UNAVAILABLE",
                        f"done here, not at {peer.name} ({error.details() or error.code()}); try again",
                    ) from error
        return answers
