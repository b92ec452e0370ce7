"""Commands to clients, carried by their telemetry streams: sent, or asked and answered.

A command has a nonce. Its answer is the one that names this nonce, is of its kind, and comes from the client that was asked;
every other answer is dropped. A client whose stream ends answers nothing more: who waits for it is told so at once.

| bound | beyond it |
|---|---|
| `COMMANDS_A_CLIENT` that a client's stream did not take yet, `MAX_HELD_OF_A_CLIENT` bytes of them, `MAX_HELD` bytes of those of all | TOO_MANY_REQUESTS |
| `ASKED_A_CLIENT` commands that a client did not answer yet, `MAX_ASKED` of all | TOO_MANY_REQUESTS |
| the caller's time | PROXY_TIMEOUT |
| `MAX_TEXT` characters of an answer | the command fails, and the answer is dropped |
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.clients import COMMANDS_A_CLIENT, ClientRegistry, ClientSession
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.runtime.peer_log import PeerLog

ASKED_A_CLIENT = 8
MAX_ASKED = 1024
MAX_HELD = 64 << 20
MAX_HELD_OF_A_CLIENT = MAX_HELD // 8
MAX_TEXT = 1_000_000
_A_COMMAND = 512
"""Bytes of memory of a command beside its message, about."""


@dataclass(frozen=True, slots=True)
class PrintStackTrace:
    """The client is to answer what its threads do."""

    @property
    def size(self) -> int:
        return _A_COMMAND


@dataclass(frozen=True, slots=True)
class VerifyMessage:
    """The consumer is to consume a message of a topic at once, and to answer how that went."""

    topic: str
    message: StoredMessage

    @property
    def size(self) -> int:
        return _A_COMMAND + len(self.message.data)


@dataclass(frozen=True, slots=True)
class RecoverTransaction:
    """The producer is to say, by EndTransaction, what became of the transaction of this message to a topic."""

    topic: str
    transaction_id: str
    message: StoredMessage

    @property
    def size(self) -> int:
        return _A_COMMAND + len(self.message.data)


@dataclass(frozen=True, slots=True)
class ReconnectEndpoints:
    """The client is to connect anew."""

    @property
    def size(self) -> int:
        return _A_COMMAND


@dataclass(frozen=True, slots=True)
class UnsubscribeLite:
    """The lite consumer does not receive from this lite topic any more."""

    lite_topic: str

    @property
    def size(self) -> int:
        return _A_COMMAND


Question = PrintStackTrace | VerifyMessage
"""A command that is answered."""
ClientCommand = Question | RecoverTransaction | ReconnectEndpoints | UnsubscribeLite


class Sent(NamedTuple):
    """A command on its way."""

    nonce: str
    command: ClientCommand
    session: ClientSession
    """Whose stream is to carry it."""


class Verdict(enum.Enum):
    """How a client did what it was asked for."""

    DONE = enum.auto()
    CONSUMED_IN_VAIN = enum.auto()
    CORRUPTED = enum.auto()
    NOT_OF_FIFO = enum.auto()
    """It does not do this with messages of ordered groups."""
    FAILED = enum.auto()


class Answer(NamedTuple):
    """`text`: what the client says, such as a stack trace."""

    verdict: Verdict
    text: str = ""


@dataclass(slots=True, eq=False)
class _Asked:
    """A command that awaits its answer; `stream` is the one that carries it."""

    session: ClientSession
    stream: asyncio.Queue[Any]
    kind: type[Question]
    answer: asyncio.Future[Answer]

    def fail(self, reason: Reason, message: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(ServiceError(reason, message))


class ClientCommands:
    """Commands of one broker. An edge that has a stream takes them from it (`carried`), and says what came back
    (`answered`) and when the stream ended (`stream_ended`)."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._peer_log = PeerLog()
        self._begin = secrets.token_hex(6)
        """What an earlier process asked is not taken for what this one asks."""
        self._count = itertools.count(1)
        self._asked: dict[str, _Asked] = {}
        self._of_client: dict[ClientSession, int] = {}
        self.held = 0
        """Bytes of commands that streams did not take yet, about."""
        self._held_of: dict[ClientSession, int] = {}

    @property
    def unanswered(self) -> int:
        return len(self._asked)

    def send(self, session: ClientSession, command: ClientCommand) -> str:
        """Has the client's stream carry a command; its nonce. TOO_MANY_REQUESTS; INTERNAL_SERVER_ERROR without a stream."""
        stream = session.commands
        if stream is None:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR,
                f"client {shown(session.client_id)} has no telemetry stream open; try again when it is connected",
            )
        if not session.takes_commands:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{COMMANDS_A_CLIENT} commands wait for client {shown(session.client_id)} to read them; try again later",
            )
        if self.held + command.size > MAX_HELD:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"commands of {self.held} bytes wait for clients to read them, at most {MAX_HELD}; try again later",
            )
        held = self._held_of.get(session, 0)
        if held and held + command.size > MAX_HELD_OF_A_CLIENT:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"commands of {held} bytes wait for client {shown(session.client_id)} to read them, at most {MAX_HELD_OF_A_CLIENT}; "
                "try again later",
            )
        nonce = f"{self._begin}-{next(self._count)}"
        stream.put_nowait(Sent(nonce, command, session))
        self.held += command.size
        self._held_of[session] = held + command.size
        return nonce

    async def ask(self, session: ClientSession, command: Question, timeout_s: float) -> Answer:
        """The client's answer to a command. As `send`; PROXY_TIMEOUT; INTERNAL_SERVER_ERROR when its stream ends, or when it
        answers too much."""
        if self._of_client.get(session, 0) >= ASKED_A_CLIENT or len(self._asked) >= MAX_ASKED:
            raise ServiceError(
                Reason.TOO_MANY_REQUESTS,
                f"{self._of_client.get(session, 0)} commands await answers of client {shown(session.client_id)}, at most "
                f"{ASKED_A_CLIENT}, {len(self._asked)} of all clients, at most {MAX_ASKED}; try again later",
            )
        nonce, stream = self.send(session, command), session.commands
        assert stream is not None
        loop = asyncio.get_running_loop()
        asked = _Asked(session, stream, type(command), loop.create_future())
        self._asked[nonce] = asked
        self._of_client[session] = self._of_client.get(session, 0) + 1
        late = f"client {shown(session.client_id)} did not answer within {timeout_s:g} s"
        timer = loop.call_later(timeout_s, asked.fail, Reason.PROXY_TIMEOUT, late)
        try:
            return await asked.answer
        finally:
            timer.cancel()
            self._forget(nonce)

    def answered(self, session: ClientSession, nonce: str, kind: type[Question], answer: Answer) -> None:
        """A client's answer to a command of this kind; one that nobody asked it for is dropped."""
        asked = self._asked.get(nonce)
        if asked is None or asked.session is not session or asked.kind is not kind or asked.answer.done():
            self._drop(session, nonce, "nobody awaits it of this client")
        elif len(answer.text) > MAX_TEXT:
            self._drop(session, nonce, "it is too large")
            asked.fail(
                Reason.INTERNAL_SERVER_ERROR,
                f"client {shown(session.client_id)} answered {len(answer.text)} characters, at most {MAX_TEXT} are taken",
            )
        else:
            asked.answer.set_result(answer)

    def carried(self, sent: Sent) -> None:
        """A stream took a command from its queue."""
        self.held -= sent.command.size
        self._held_of[sent.session] -= sent.command.size
        if not self._held_of[sent.session]:
            del self._held_of[sent.session]

    def lost(self, sent: Sent, why: str) -> None:
        """A command that was taken could not be carried."""
        asked = self._asked.get(sent.nonce)
        if asked is not None:
            asked.fail(Reason.INTERNAL_SERVER_ERROR, why)

    def stream_ended(self, session: ClientSession, stream: asyncio.Queue[Any]) -> None:
        """A client's stream carries nothing more."""
        while not stream.empty():
            left = stream.get_nowait()
            if isinstance(left, Sent):
                self.carried(left)
        if session not in self._of_client:
            return
        gone = f"the telemetry stream of client {shown(session.client_id)} ended before it answered"
        for asked in self._asked.values():
            if asked.stream is stream:
                asked.fail(Reason.INTERNAL_SERVER_ERROR, gone)

    def reconnect_all(self) -> int:
        """Tells every client with a stream to connect anew; how many were told."""
        told = 0
        for session in self._clients.sessions():
            if not session.takes_commands or self.held + _A_COMMAND > MAX_HELD:
                continue
            if self._held_of.get(session, 0) + _A_COMMAND <= MAX_HELD_OF_A_CLIENT:
                self.send(session, ReconnectEndpoints())
                told += 1
        return told

    def _forget(self, nonce: str) -> None:
        session = self._asked.pop(nonce).session
        self._of_client[session] -= 1
        if not self._of_client[session]:
            del self._of_client[session]

    def _drop(self, session: ClientSession, nonce: str, why: str) -> None:
        self._peer_log.warning(
            session.host,
            "an answer of a client to a command is dropped",
            client_id=session.client_id[:128],
            nonce=nonce[:64],
            why=why,
        )
