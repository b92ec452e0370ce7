"""Tickets of Flight: what DoGet is to do, signed by this process. None is kept, so no flood of them fills anything."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from lakebroker_pb.lakebroker.flight.v1 import ticket_pb2 as tickets
from structured_streaming.flight.failures import CallError, bad, not_found

_SIGNATURE = hashlib.sha256().digest_size
_ID = 16


class Tickets:
    """Makes tickets and reads them."""

    def __init__(self, lasting_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = os.urandom(32)
        self._lasting_s = lasting_s
        self._clock = clock

    def sealed(self, ticket: tickets.Ticket) -> bytes:
        """The ticket's bytes; it gets an id, and an end."""
        ticket.id = os.urandom(_ID)
        ticket.expires_ms = int((self._clock() + self._lasting_s) * 1000)
        content = ticket.SerializeToString()
        return self._signature(content) + content

    def opened(self, sealed: bytes) -> tickets.Ticket:
        """What it holds. Raises CallError for one that this process did not make, or that is too old."""
        signature, content = sealed[:_SIGNATURE], sealed[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise _foreign()
        try:
            ticket = tickets.Ticket.FromString(content)
        except DecodeError as error:
            raise _foreign() from error
        if ticket.expires_ms < self._clock() * 1000:
            raise not_found(f"the ticket is older than {self._lasting_s:g} s; ask again with GetFlightInfo")
        return ticket

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")


def _foreign() -> CallError:
    return bad("the ticket is none of this server's, or of before its start; ask again with GetFlightInfo")
