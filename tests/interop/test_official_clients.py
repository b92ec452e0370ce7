"""Unmodified official clients in Java, Node and Go against the gateway, plaintext and TLS; all on both transports in `make evidence`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lakebroker_testing.gateway import Gateway
from tests.suite.evidence import LONG
from tests.support.rocketmq.foreign_clients import OFFICIAL
from tests.support.waiting import LIMIT_S

COUNT = 40


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Gateway]]:
    """By transport; each has TLS and plaintext on one port, as by default."""
    with ExitStack() as stack:
        yield {
            transport: stack.enter_context(Gateway(tmp_path_factory.mktemp(transport), transport=transport))
            for transport in ("http2", "grpcio")
        }


@pytest.mark.parametrize(
    ("language", "transport", "security"),
    [
        ("java", "http2", "tls"),
        ("java", "http2", "plain"),
        pytest.param("java", "grpcio", "plain", marks=LONG),
        ("node", "http2", "plain"),
        pytest.param("node", "grpcio", "plain", marks=LONG),
        ("go", "http2", "tls"),
        ("go", "http2", "plain"),
        ("go", "grpcio", "plain"),
    ],
)
def test_send_receive_ack(
    tmp_path: Path, gateways: dict[str, Gateway], language: str, transport: str, security: str
) -> None:
    command = OFFICIAL[language]()
    gateway = gateways[transport]
    done = subprocess.run(
        [*command, gateway.address, security, f"{language}-{security}", str(COUNT)],
        env={**os.environ, "HOME": str(tmp_path), "GODEBUG": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (
        f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}\n{gateway.log.read_text()[-3000:]}"
    )
    assert done.stdout.strip().splitlines()[-1] == f"OK {COUNT}"
    assert "call failed" not in gateway.log.read_text()
