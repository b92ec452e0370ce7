"""How signals stop a gateway: those that come together are one, a later one ends it at once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from lakebroker_testing.gateway import Gateway
from tests.support.peers.raw_http2 import RawPeer


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_at_once_stop_it_in_an_orderly_way(tmp_path: Path, second: signal.Signals) -> None:
    with Gateway(tmp_path) as gateway:
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
        gateway.process.send_signal(second)
        assert gateway.process.wait(60) == 0
    assert "stopped" in gateway.log.read_text().splitlines()[-1]


def test_a_later_signal_ends_it_at_once_and_says_so(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, RawPeer(gateway.address) as peer:
        assert gateway.process is not None
        peer.send(
            peer.request(1, "/apache.rocketmq.v2.MessagingService/Telemetry", None, ("x-mq-client-id", "c"))
        )
        gateway.process.send_signal(signal.SIGTERM)  # it waits for the call, whose end never comes
        time.sleep(2)
        assert gateway.process.poll() is None
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(5) == 1
    assert "a second signal" in gateway.log.read_text().splitlines()[-1]
