"""Plain grpc-go and grpc-java go through the behaviour suite that grpcio's client goes through in
`tests/integration/transport`: the same service, plaintext and TLS (Java over TLS in `make evidence`), and in `make evidence` on both transports."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from broker_gateway.transport.certificates import server_context, trial_certificate
from tests.suite.evidence import LONG
from tests.support.peers.echo_service import Served
from tests.support.rocketmq.foreign_clients import PLAIN
from tests.support.waiting import LIMIT_S

_FAILS = "FAILED_PRECONDITION: not now: ä % \n 漢"
EXPECTED = {
    "sum of no requests": "0",
    "sum of 4 requests": str((5 << 20) + 5),
    "both in turns": "OK",
    "all at once": "3 messages, 9 bytes",
    "no responses": "0 messages, 0 bytes",
    "1000 responses": "1002 messages, 1000010 bytes",
    "40 MiB of responses": f"42 messages, {(40 << 20) + 10} bytes",
    "metadata": "what is asked",
    "gzip": "7 messages, 500010 bytes",
    "too large": "RESOURCE_EXHAUSTED",
    "unknown method": "UNIMPLEMENTED",
    "unknown service": "UNIMPLEMENTED",
    "slow reader": "101 messages, 99000010 bytes",
    "3000 calls at once": "OK",
    **{f"echo of {size}": "OK" for size in (0, 1, 1000, 16_379, 16_380, 100_000, 3 << 20)},
    **{f"{method} fails": _FAILS for method in ("Unary", "Later", "Coroutine", "Down")},
    **{f"{method} has a bug": "INTERNAL" for method in ("Unary", "Coroutine", "Down")},
    **{f"{method} is late": "DEADLINE_EXCEEDED" for method in ("Coroutine", "Later", "Down", "AllAtOnce")},
    **{f"{method} is cancelled": "CANCELLED" for method in ("Down", "AllAtOnce")},
}


NOT_COMPRESSED = {"gzip": "UNIMPLEMENTED: Compression algorithm 'gzip' is disabled."}
"""The transport grpcio could not bound what a request becomes."""


@pytest.mark.parametrize(
    ("client", "transport", "security"),
    [
        ("grpc-go", "http2", "plain"),
        ("grpc-go", "http2", "tls"),
        pytest.param("grpc-go", "grpcio", "plain", marks=LONG),
        ("grpc-java", "http2", "plain"),
        # in short a Java client speaks TLS in test_official_clients.py
        pytest.param("grpc-java", "http2", "tls", marks=LONG),
        pytest.param("grpc-java", "grpcio", "plain", marks=LONG),
    ],
)
def test_behaviour(tmp_path: Path, client: str, transport: str, security: str) -> None:
    command = PLAIN[client]()
    tls = server_context(*trial_certificate(tmp_path, "127.0.0.1")) if security == "tls" else None
    served = Served(transport, tls)
    try:
        done = subprocess.run(
            [*command, served.address, security],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        served.stop(1.0)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = EXPECTED if transport == "http2" else EXPECTED | NOT_COMPRESSED
    assert json.loads(done.stdout) == expected
    assert served.echo.cancelled >= 6
