"""Sends that belong to another lakebroker, handed to it: to the other brokers of this host, and to those that name servers
know.

A send is handed over once: who gets one serves it, or refuses it. It goes to the remoting port, where the broker registered.
"""

from __future__ import annotations

from collections import Counter

from broker_gateway.cluster.outgoing import outgoing
from broker_gateway.cluster.peer_routes import PeerRoutes
from broker_gateway.config.registration import RegistrationOptions, local_address
from broker_gateway.metadata.peers import Peers
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RemotingError
from broker_gateway.protocol.frame import MAX_FRAME

TIMEOUT_S = 6.0
"""More than a flush may take (`syncFlushTimeout`)."""
MAX_SENDS, MAX_BYTES = 256, 32 << 20
"""Under way to one broker, which may hang; what comes beyond is refused at once. A single send may be larger."""
LARGEST = MAX_FRAME - (64 << 10)
"""Bytes of a request: those of a frame, less its head."""
_CLIENT_LIMIT = 1 << 20
"""Of all sends under way: none, beside those of each broker."""


class HandOverError(Exception):
    """The other broker cannot be reached, or refused the send; or it did not answer in time, and may have served it."""


class BusyError(HandOverError):
    """As much is under way to the other broker as may be."""


class HandOver:
    """`bound`: the address that the brokers of this host listen on."""

    def __init__(
        self, options: RegistrationOptions, peers: Peers, peer_routes: PeerRoutes, bound: str
    ) -> None:
        self._peers = peers
        self._peer_routes = peer_routes
        self._bound = bound
        self._client = outgoing(options, lambda _: None, _CLIENT_LIMIT)
        self._sends: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    async def send(self, broker: str, queue_id: int, topic: str, request: bytes, peer: str) -> bytes:
        """The response of a broker to a SendMessageRequest, which came from `peer` (`host:port`), for a queue that it has.
        Raises HandOverError, of which BusyError."""
        size, under_way = len(request), self._sends[broker]
        if under_way >= MAX_SENDS or (under_way and self._bytes[broker] + size > MAX_BYTES):
            raise BusyError(f"{under_way} sends with {self._bytes[broker]} bytes are on their way there")
        self._sends[broker] += 1
        self._bytes[broker] += size
        try:
            return await self._send(broker, queue_id, topic, request, peer)
        finally:
            self._sends[broker] -= 1
            self._bytes[broker] -= size
            if not self._sends[broker]:
                del self._sends[broker], self._bytes[broker]

    async def _send(self, broker: str, queue_id: int, topic: str, request: bytes, peer: str) -> bytes:
        fields = {"topic": topic, "queueId": str(queue_id), "bornHost": peer}
        command = Command(RequestCode.LAKE_SEND_ORDERED, fields, request)
        try:
            answer = await self._client.invoke(self._address(broker), command, TIMEOUT_S)
        except RemotingError as error:
            raise HandOverError(str(error)) from error
        if answer.code != ResponseCode.SUCCESS:
            raise HandOverError(f"it answered {answer.code}: {(answer.remark or '')[:200]}")
        return answer.body

    async def stop(self) -> None:
        await self._client.close()

    def _address(self, broker: str) -> str:
        address = self._peer_routes.address_of(broker)
        if address is not None:
            return address
        for peer in self._peers.all:
            if peer.name == broker and peer.remoting_port:
                return local_address(self._bound, peer.remoting_port)
        raise HandOverError("it is not there any more")
