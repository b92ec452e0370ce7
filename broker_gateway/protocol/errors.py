"""Errors of the remoting protocol.

| error | who is to blame | what follows |
|---|---|---|
| ProtocolError | the peer: its frame or header breaks the rules | its connection is closed |
| BodyError | the peer: the body of a sound frame cannot be read | the request is answered with an error |
| RequestError | the peer: the request cannot be served | it is answered with this code and remark |
| EncodeError | we: a command that does not fit the protocol | raised to the caller |
| ConnectError, SendError, RequestTimeoutError, TooManyRequestsError | the network, or load | raised to the caller |
"""

from __future__ import annotations

from broker_gateway.protocol.codes import ResponseCode


class RemotingError(Exception):
    """Anything that went wrong with a command."""


class ProtocolError(RemotingError):
    """A frame or header that breaks the rules; the connection cannot go on."""


class BodyError(RemotingError):
    """A body that cannot be read; the frame around it was sound."""


class RequestError(RemotingError):
    """A request that cannot be served; the answer is `code` with the message as remark."""

    def __init__(self, remark: str, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        super().__init__(remark)
        self.code = code


class EncodeError(RemotingError):
    """A command of ours that does not fit the protocol."""


class ConnectError(RemotingError):
    """No connection to the address."""


class SendError(RemotingError):
    """The connection ended before the answer came."""


class RequestTimeoutError(RemotingError):
    """No answer in time."""


class TooManyRequestsError(RemotingError):
    """As many requests are under way as are allowed, and none of them ended in time."""
