"""Commands to clients: each answer belongs to a command and the client that was asked, and everything is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from broker_gateway.messaging import client_commands as module
from broker_gateway.messaging.client_commands import (
    ASKED_A_CLIENT,
    MAX_TEXT,
    Answer,
    ClientCommands,
    PrintStackTrace,
    ReconnectEndpoints,
    RecoverTransaction,
    Sent,
    Verdict,
    VerifyMessage,
)
from broker_gateway.messaging.clients import COMMANDS_A_CLIENT, ClientRegistry, ClientSession
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.stored_message import StoredMessage
from store.log.record import Host, PendingRecord, encode_record

OWN, STRANGER = "10.0.0.1:1000", "10.0.0.66:6666"
TRACE = Answer(Verdict.DONE, "main")


class Scene:
    """A registry, its commands, and one client with a stream."""

    def __init__(self) -> None:
        self.clients = ClientRegistry(100)
        self.commands = ClientCommands(self.clients)
        self.session = self.connected("c", OWN)

    def connected(self, client_id: str, peer: str) -> ClientSession:
        session = self.clients.seen(client_id, peer)
        session.commands = asyncio.Queue()
        return session

    def taken(self, session: ClientSession | None = None) -> Sent:
        """What the client's stream takes next."""
        stream = (session or self.session).commands
        assert stream is not None
        sent = stream.get_nowait()
        assert isinstance(sent, Sent)
        self.commands.carried(sent)
        return sent

    def answer(self, nonce: str, session: ClientSession | None = None, answer: Answer = TRACE) -> None:
        self.commands.answered(session or self.session, nonce, PrintStackTrace, answer)

    def end(self, session: ClientSession) -> None:
        """As the edge does when a stream ends."""
        stream, session.commands = session.commands, None
        assert stream is not None
        self.commands.stream_ended(session, stream)


def played(play: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        await play(scene)
        assert (scene.commands.unanswered, scene.commands._of_client) == (0, {}), "nothing is left"

    asyncio.run(run())


async def asking(
    scene: Scene, session: ClientSession | None = None, timeout_s: float = 60
) -> asyncio.Task[Answer]:
    asked = asyncio.create_task(
        scene.commands.ask(session or scene.session, PrintStackTrace(), timeout_s), name="ask"
    )
    await asyncio.sleep(0)
    return asked


async def settled() -> None:
    """Whoever was answered goes on."""
    for _ in range(3):
        await asyncio.sleep(0)


async def refused(asked: Awaitable[Answer], reason: Reason, text: str) -> None:
    with pytest.raises(ServiceError, match=text) as caught:
        await asked
    assert caught.value.reason is reason


def stored(body: bytes) -> StoredMessage:
    host = Host("127.0.0.1", 10911).packed
    pending = PendingRecord("t", 0, body, b"UNIQ_KEY\x01M\x02", 1, host)
    parts = encode_record(pending, 0, 0, 1, host, append_crc=False)
    return StoredMessage(memoryview(b"".join(parts)))


def test_answers_come_to_who_asked_in_any_order() -> None:
    async def play(scene: Scene) -> None:
        other = scene.connected("d", OWN)
        asked = [await asking(scene, each) for each in (scene.session, other, scene.session)]
        nonces = [scene.taken(each).nonce for each in (scene.session, other, scene.session)]
        assert len(set(nonces)) == 3
        for nonce, session, text in reversed(
            list(zip(nonces, (scene.session, other, scene.session), "abc", strict=True))
        ):
            scene.answer(nonce, session, Answer(Verdict.DONE, text))
        assert [(await each).text for each in asked] == ["a", "b", "c"]

    played(play)


def test_an_answer_that_nobody_asked_this_client_for_is_dropped_and_told_once() -> None:
    async def play(scene: Scene) -> None:
        stranger, other = scene.connected("c", STRANGER), scene.connected("d", OWN)
        asked = await asking(scene)
        nonce = scene.taken().nonce
        with capture_logs() as logs:
            scene.answer("invented")
            scene.answer("")
            scene.answer(nonce, stranger)
            scene.answer(nonce, other)
            scene.commands.answered(scene.session, nonce, VerifyMessage, TRACE)
        await settled()
        assert not asked.done()
        assert [each["client_id"] for each in logs] == ["c", "c"], "one line for each address"
        scene.answer(nonce)
        scene.answer(nonce, answer=Answer(Verdict.FAILED))
        assert await asked == TRACE
        scene.answer(nonce, answer=Answer(Verdict.FAILED))

    played(play)


def test_nonces_of_an_earlier_process_are_others() -> None:
    async def play(scene: Scene) -> None:
        asked = await asking(scene)
        nonce = scene.taken().nonce
        again = Scene()
        later = await asking(again)
        again.answer(nonce)
        await settled()
        assert not later.done()
        for each in (later, asked):
            each.cancel()
        await asyncio.gather(later, asked, return_exceptions=True)

    played(play)


def test_a_client_that_goes_away_ends_the_wait_at_once() -> None:
    async def play(scene: Scene) -> None:
        other = scene.connected("d", OWN)
        taken, waiting, others = await asking(scene), await asking(scene), await asking(scene, other)
        scene.taken()
        scene.end(scene.session)
        for each in (taken, waiting):
            await refused(each, Reason.INTERNAL_SERVER_ERROR, "stream of client 'c' ended before it answered")
        await settled()
        assert not others.done()
        scene.answer(scene.taken(other).nonce, other)
        assert await others == TRACE
        assert scene.commands.held == 0
        await refused(await asking(scene), Reason.INTERNAL_SERVER_ERROR, "no telemetry stream open")

    played(play)


def test_a_stream_in_place_of_another_answers_nothing_of_that_one() -> None:
    async def play(scene: Scene) -> None:
        asked = await asking(scene)
        nonce, old = scene.taken().nonce, scene.session.commands
        assert old is not None
        scene.session.commands = asyncio.Queue()
        later = await asking(scene)
        scene.commands.stream_ended(scene.session, old)
        await refused(asked, Reason.INTERNAL_SERVER_ERROR, "ended before")
        scene.answer(nonce)
        await settled()
        assert not later.done()
        scene.answer(scene.taken().nonce)
        assert await later == TRACE

    played(play)


def test_a_wait_is_bounded_and_a_late_answer_dropped() -> None:
    async def play(scene: Scene) -> None:
        asked = await asking(scene, timeout_s=0.01)
        nonce = scene.taken().nonce
        await refused(asked, Reason.PROXY_TIMEOUT, "client 'c' did not answer within 0.01 s")
        with capture_logs() as logs:
            scene.answer(nonce)
        assert [each["nonce"] for each in logs] == [nonce]

    played(play)


def test_who_gives_up_frees_its_place() -> None:
    async def play(scene: Scene) -> None:
        for _ in range(3 * ASKED_A_CLIENT):
            asked = await asking(scene)
            scene.taken()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    played(play)


def test_what_is_unanswered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(scene: Scene) -> None:
        monkeypatch.setattr(module, "MAX_ASKED", ASKED_A_CLIENT + 1)
        other = scene.connected("d", OWN)
        asked = [await asking(scene) for _ in range(ASKED_A_CLIENT)]
        await refused(await asking(scene), Reason.TOO_MANY_REQUESTS, "8 commands await answers of client 'c'")
        asked.append(await asking(scene, other))
        await refused(await asking(scene, other), Reason.TOO_MANY_REQUESTS, "9 of all clients, at most 9")
        for each in (scene.session, other):
            scene.end(each)
        await asyncio.gather(*asked, return_exceptions=True)

    played(play)


def test_what_a_client_does_not_read_is_bounded() -> None:
    async def play(scene: Scene) -> None:
        for _ in range(COMMANDS_A_CLIENT):
            scene.commands.send(scene.session, ReconnectEndpoints())
        with pytest.raises(ServiceError, match="64 commands wait for client 'c'") as caught:
            scene.commands.send(scene.session, ReconnectEndpoints())
        assert caught.value.reason is Reason.TOO_MANY_REQUESTS
        await refused(await asking(scene), Reason.TOO_MANY_REQUESTS, "64 commands wait")
        assert scene.commands.reconnect_all() == 0
        scene.taken()
        scene.commands.send(scene.session, ReconnectEndpoints())
        scene.end(scene.session)
        assert scene.commands.held == 0

    played(play)


def test_bytes_that_clients_do_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(scene: Scene) -> None:
        monkeypatch.setattr(module, "MAX_HELD", 100_000)
        message = stored(b"x" * 40_000)
        scene.commands.send(scene.session, RecoverTransaction("t", "T1", message))
        scene.commands.send(scene.connected("d", OWN), RecoverTransaction("t", "T1", message))
        with pytest.raises(ServiceError, match="bytes wait for clients to read them"):
            scene.commands.send(scene.session, VerifyMessage("t", message))
        scene.taken()
        scene.commands.send(scene.session, VerifyMessage("t", message))
        for session in list(scene.clients.sessions()):
            scene.end(session)
        assert scene.commands.held == 0

    played(play)


def test_a_client_that_reads_nothing_keeps_no_other_from_its_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(scene: Scene) -> None:
        monkeypatch.setattr(module, "MAX_HELD_OF_A_CLIENT", 100_000)
        check = RecoverTransaction("t", "T1", stored(b"x" * 40_000))
        scene.commands.send(scene.session, check)
        scene.commands.send(scene.session, check)
        with pytest.raises(ServiceError, match="wait for client"):
            scene.commands.send(scene.session, check)
        scene.commands.send(scene.connected("d", OWN), check)
        scene.taken()
        scene.commands.send(scene.session, check)
        for session in list(scene.clients.sessions()):
            scene.end(session)
        assert scene.commands.held == 0

    played(play)


def test_too_large_an_answer_fails_the_command() -> None:
    async def play(scene: Scene) -> None:
        asked = await asking(scene)
        nonce = scene.taken().nonce
        with capture_logs() as logs:
            scene.answer(nonce, answer=Answer(Verdict.DONE, "x" * (MAX_TEXT + 1)))
        assert [each["why"] for each in logs] == ["it is too large"]
        await refused(asked, Reason.INTERNAL_SERVER_ERROR, "answered 1000001 characters, at most 1000000")
        largest = await asking(scene)
        scene.answer(scene.taken().nonce, answer=Answer(Verdict.DONE, "x" * MAX_TEXT))
        assert len((await largest).text) == MAX_TEXT

    played(play)


def test_a_command_that_cannot_be_carried_fails() -> None:
    async def play(scene: Scene) -> None:
        asked = await asking(scene)
        scene.commands.lost(scene.taken(), "it cannot be written")
        await refused(asked, Reason.INTERNAL_SERVER_ERROR, "it cannot be written")

    played(play)


def test_all_clients_with_a_stream_are_told_to_reconnect() -> None:
    async def play(scene: Scene) -> None:
        other = scene.connected("d", STRANGER)
        scene.clients.seen("without", OWN)
        assert scene.commands.reconnect_all() == 2
        for each in (scene.session, other):
            assert scene.taken(each).command == ReconnectEndpoints()

    played(play)
