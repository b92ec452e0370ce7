"""What hostile and idle peers of a remoting port send, and how the process that they press stands it."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import subprocess
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.frame import MAX_FRAME, encode
from tests.suite.evidence import EVIDENCE
from tests.support.waiting import LIMIT_S

BODY = RegisterBrokerBody(DataVersion(0, 1, 1), {name: TopicConfig(name) for name in ("orders", "other")})
IDS = {
    "brokerName": "b",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
}
HOSTILE_IDS = {**IDS, "brokerName": "hostile", "brokerAddr": "127.0.0.1:9"}
IDLE = 2000 if EVIDENCE else 400
_PATIENCE_S = 100.0
"""Shorter than the 120 s after which an idle connection is closed: tests ask whether one is closed for what it sent."""
CHANGED = 200 if EVIDENCE else 60
"""Frames of bytes that were changed at random, and as many of random bytes."""
Record = Callable[[str, object], None]


def _zeros(mib: int) -> bytes:
    """So many of them, compressed: the same block again and again, which takes no time to make."""
    block = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    one = block.compress(bytes(1 << 20)) + block.flush(zlib.Z_FULL_FLUSH)
    checksum = ((mib << 20) % 65521 << 16 | 1).to_bytes(4)  # Adler-32 of zeros alone (RFC 1950)
    return b"\x78\xda" + one * mib + b"\x03\x00" + checksum


_MADE: dict[str, Callable[[], bytes]] = {
    "deep": lambda: b"[" * (8 << 20),
    "dense": lambda: b'{"filterServerList":[' + b"[]," * 1_400_000 + b"[]]}",
    "bare keys": lambda: b"{" + b",".join(b"a%d:1" % number for number in range(1_400_000)) + b"}",
    "no wrapper": lambda: b'{"filterServerList":[]}' + b" " * (1 << 20),
    "wide": lambda: b"[" + b"{}," * (4 << 20) + b"{}]",
    "quotes": lambda: b"{0:" + b'"' + b'\\"' * (4 << 20),
    "bomb": lambda: _zeros(1024),
    "texts": lambda: b'{"filterServerList":[' + b'"' + b"x" * (15 << 20) + b'"]}',
}


class _Bombs(Mapping[str, bytes]):
    """Each made when it is sent: whoever only collects tests has no time for them."""

    def __getitem__(self, kind: str) -> bytes:
        return _MADE[kind]()

    def __iter__(self) -> Iterator[str]:
        return iter(_MADE)

    def __len__(self) -> int:
        return len(_MADE)


BOMBS = _Bombs()


def memory_mib(process: subprocess.Popen[bytes] | None, what: str = "VmRSS") -> int:
    """Resident now (VmRSS), or the most there ever was (VmHWM)."""
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) >> 10


def forget_peak(process: subprocess.Popen[bytes] | None) -> None:
    """VmHWM begins again with what is resident now."""
    assert process is not None
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def connect(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
    found.settimeout(_PATIENCE_S)
    return found


def hostile_frames() -> list[bytes]:
    chance = random.Random(7)
    whole = encode(Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, BODY.encode(compress=True)))
    broken = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", MAX_FRAME),
        struct.pack(">II", 100, 0xFF000000),
        struct.pack(">II", 100, 101),
        struct.pack(">II", 12, 8) + b"[[[[[[[[",
    ]
    for _ in range(CHANGED):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        broken.append(bytes(changed))
    broken += [chance.randbytes(chance.randint(1, 400)) for _ in range(CHANGED)]
    return broken


async def idle_and_half_open(
    ports: tuple[int, ...],
    process: subprocess.Popen[bytes] | None,
    look: Callable[[], Awaitable[None]],
    record: Record,
    *,
    leaving: int,
    large: int,
) -> None:
    """`IDLE` peers, each second of them within a frame, of which `leaving` go; then `large` that announce 16 MiB and send
    all but a byte. `look` asks whether others are served."""
    before = memory_mib(process)
    peers = [connect(ports[number % len(ports)]) for number in range(IDLE)]
    for peer in peers[::2]:
        peer.sendall(struct.pack(">II", 1000, 900) + b"{")
    await look()
    idle = memory_mib(process) - before
    record("grown_by_idle_mib", idle)
    assert idle < 100
    for peer in peers[:leaving]:
        peer.close()
    announced = struct.pack(">II", MAX_FRAME - 4, 2) + b"{}"
    most = 0
    for _ in range(large):
        peer = connect(ports[0])
        peers.append(peer)
        with contextlib.suppress(ConnectionError):  # closed for holding too much
            peer.sendall(announced + bytes(MAX_FRAME - len(announced) - 1))
        await look()
        most = max(most, memory_mib(process))
    record("grown_by_half_open_mib", most - before)
    assert most < before + 500, f"{16 * large} MiB were sent, 256 may be held, of all ports together"
    for peer in peers:
        peer.close()
    await look()
