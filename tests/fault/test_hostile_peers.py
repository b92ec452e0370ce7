"""Hostile peers of every kind at once, beside 200 honest messages a second: nobody honest notices but by waiting.

Every honest call is answered OK, the gateway's memory and descriptors stay bounded, and the log holds what was taken and
nothing else. With LAKEBROKER_EVIDENCE=1 two minutes on each transport, and the waiting of honest sends is recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import Gateway
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.logs.contents import stored
from tests.support.peers.hostile_clients import KINDS, SERVICE
from tests.support.peers.hostile_remoting import Record, memory_mib
from tests.support.waiting import LIMIT_S, wait_until

QUIET_S, HOSTILE_S = (30.0, 120.0) if EVIDENCE else (0.5, 2.0)
RATE = 200
MOST_MIB = 512
DESCRIPTORS = 1024
GRPCIO_CANNOT = {"half requests", "idle connections", "untaken replies", "resets", "invented clients"}
"""What the transport grpcio has no bound for; docs/differences.md says so."""
pytestmark = pytest.mark.timeout(900)


@dataclass
class Honest:
    """Calls of honest clients and what became of them."""

    address: str
    waits: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    received: int = 0
    acknowledged: int = 0

    async def run(self, seconds: float) -> None:
        """Sends at RATE from four clients; receives and acknowledges beside it."""
        channels = [
            grpc.aio.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(5)
        ]
        try:
            until = time.monotonic() + seconds
            consumer = asyncio.create_task(self._consume(channels[4], until))
            calls = []
            began, number = time.monotonic(), 0
            while time.monotonic() < until or not calls:
                calls.append(asyncio.create_task(self._send(channels[number % 4])))
                number += 1
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            await asyncio.gather(*calls, consumer)
        finally:
            for each in channels:
                await each.close()

    async def _send(self, channel: Any) -> None:
        message_id = uuid.uuid4().hex.upper()
        system = pb.SystemProperties(message_id=message_id, message_type=pb.NORMAL)
        message = pb.Message(topic=pb.Resource(name="honest"), body=b"h" * 500, system_properties=system)
        began = time.monotonic()
        answer = await self._call(channel, "SendMessage", rpc.SendMessageRequest(messages=[message]))
        if answer is not None:
            self.waits.append(time.monotonic() - began)
            self.taken.add(message_id)

    async def _consume(self, channel: Any, until: float) -> None:
        while time.monotonic() < until:
            request = rpc.ReceiveMessageRequest(
                group=pb.Resource(name="honest"),
                message_queue=pb.MessageQueue(topic=pb.Resource(name="honest"), id=-1),
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                batch_size=32,
            )
            request.invisible_duration.FromSeconds(300)
            request.long_polling_timeout.FromSeconds(5)
            call = channel.unary_stream(
                SERVICE + "ReceiveMessage",
                request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
                response_deserializer=rpc.ReceiveMessageResponse.FromString,
            )(request, metadata=(("x-mq-client-id", "honest"),), timeout=LIMIT_S)
            try:
                answers = [each async for each in call]
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"ReceiveMessage {error.code()} {error.details()}")
                continue
            status = answers[0].status
            if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                self.failures.append(f"ReceiveMessage {status}")
            messages = [each.message.system_properties for each in answers if each.HasField("message")]
            self.received += len(messages)
            if messages:
                await self._acknowledge(channel, messages)

    async def _acknowledge(self, channel: Any, messages: list[Any]) -> None:
        entries = [
            rpc.AckMessageEntry(message_id=each.message_id, receipt_handle=each.receipt_handle)
            for each in messages
        ]
        request = rpc.AckMessageRequest(
            group=pb.Resource(name="honest"), topic=pb.Resource(name="honest"), entries=entries
        )
        if await self._call(channel, "AckMessage", request) is not None:
            self.acknowledged += len(entries)

    async def _call(self, channel: Any, method: str, request: Any) -> Any:
        """The answer when it is OK."""
        call = channel.unary_unary(
            SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, method + "Response").FromString,
        )
        try:
            answer = await call(request, metadata=(("x-mq-client-id", "honest"),), timeout=LIMIT_S)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{method} {error.code()} {error.details()}")
            return None
        if answer.status.code != pb.OK:
            self.failures.append(f"{method} {answer.status}")
            return None
        return answer

    def p99_ms(self) -> float:
        waits = sorted(self.waits)
        return round(1000 * waits[int(len(waits) * 0.99)], 1)


@pytest.fixture(params=["http2", pytest.param("grpcio", marks=LONG)])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gateway]:
    limits = {resource.RLIMIT_NOFILE: (DESCRIPTORS, DESCRIPTORS)} if request.param == "http2" else None
    options = {
        "lakeWithNamesrv": "true",
        "lakeAutoCreateTopics": "true",
        "lakeMaxWaitingReceives": "5000",  # fewer than the hostile ones ask for
        "lakeMaxClients": "1000",
    }
    with Gateway(tmp_path, transport=request.param, limits=limits, **options) as started:
        wait_until(lambda: "compiled code loaded" in started.log.read_text())
        yield started


def test_hostile_peers_of_every_kind(
    gateway: Gateway, request: pytest.FixtureRequest, tmp_path: Path, record_property: Record
) -> None:
    transport = request.node.callspec.params["gateway"]
    assert gateway.process is not None
    quiet, honest = Honest(gateway.address), Honest(gateway.address)
    asyncio.run(quiet.run(QUIET_S))
    plan = {
        "ports": {
            "grpc": gateway.grpc_port,
            "remoting": gateway.remoting_port,
            "fast": gateway.remoting_port - 2,
            "namesrv": gateway.name_server_port,
            "metrics": gateway.metrics_port,
        },
        "seconds": HOSTILE_S,
        "kinds": [each for each in KINDS if transport == "http2" or each not in GRPCIO_CANNOT],
        "answers": str(tmp_path / "answers"),
        "rounds": str(tmp_path / "rounds"),
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    program = [sys.executable, "-m", "tests.support.peers.hostile_clients", str(tmp_path / "plan.json")]
    # they are on other machines in life: here they have the processor time that gateway and honest clients leave
    with subprocess.Popen(["nice", "-n", "10", *program]) as hostile:
        wait_until(Path(plan["answers"]).exists)  # they begin
        open_files, most = asyncio.run(_watched(gateway, honest.run(HOSTILE_S)))
        assert hostile.wait(LIMIT_S) == 0
    assert json.loads(Path(plan["rounds"]).read_text()).keys() == set(plan["kinds"])
    assert gateway.process.poll() is None
    record_property("honest_calls", len(honest.waits))
    record_property("quiet_p99_ms", quiet.p99_ms())
    record_property("hostile_p99_ms", honest.p99_ms())
    record_property("p99_ratio", round(honest.p99_ms() / quiet.p99_ms(), 1))
    record_property("memory_mib", most)
    record_property("open_files", open_files)
    failures = quiet.failures + honest.failures
    assert not failures, f"{len(failures)} honest calls failed: {failures[:3]}"
    assert honest.received > 0
    assert honest.acknowledged == honest.received
    assert most < MOST_MIB
    assert transport == "grpcio" or open_files < DESCRIPTORS - 64
    assert "Too many open files" not in gateway.log.read_text()
    gateway.terminate()
    _check_log(gateway.store, quiet.taken | honest.taken, Path(plan["answers"]))


async def _watched(gateway: Gateway, load: Coroutine[Any, Any, None]) -> tuple[int, int]:
    """The most files that the gateway had open meanwhile, and the most memory, MiB, without pages of the log."""
    assert gateway.process is not None
    folder, files, memory = Path(f"/proc/{gateway.process.pid}/fd"), 0, 0
    running = asyncio.create_task(load)
    while not running.done():
        files = max(files, len(os.listdir(folder)))
        memory = max(memory, memory_mib(gateway.process, "RssAnon"))
        await asyncio.wait([running], timeout=0.5)
    await running
    return files, memory


def _check_log(store: Path, honest: set[str], answers: Path) -> None:
    """The log holds each honest message once, those of the others that were taken or may have been, and nothing else."""
    outcomes = dict(line.split() for line in answers.read_text().splitlines())
    found = stored(store)
    assert max(found.values()) == 1
    assert honest <= found.keys()
    others = found.keys() - honest
    assert all(outcomes.get(each) in ("taken", "unknown") for each in others)
    taken = {each for each, outcome in outcomes.items() if outcome == "taken"}
    assert taken
    assert taken <= found.keys()
