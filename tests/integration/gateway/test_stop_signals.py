"""What stops a gateway: signals, of which those that come together are one and a later one ends it at once; the end of its input."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lakebroker_testing.gateway import Gateway
from lakebroker_testing.prestarted import start
from tests.support.brokers import with_constants
from tests.support.brokers.gateways import gateway_words
from tests.support.peers.raw_http2 import GOAWAY, RawPeer
from tests.support.waiting import LIMIT_S, wait_until


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_at_once_stop_it_in_an_orderly_way(tmp_path: Path, second: signal.Signals) -> None:
    log, one = tmp_path / "log", {"broker_gateway.runtime.stop_signals._ONE_S": 600.0}
    with log.open("wb") as output:
        process = with_constants.start(one, *gateway_words(tmp_path), stdout=output, stderr=output)
    try:
        wait_until((tmp_path / "ports.json").exists, log.read_text)
        process.send_signal(signal.SIGTERM)
        process.send_signal(second)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert "stopped" in log.read_text().splitlines()[-1]


def test_a_later_signal_ends_it_at_once_and_says_so(tmp_path: Path) -> None:
    with Gateway(tmp_path, grpcShutdownTimeSeconds="600") as gateway, RawPeer(gateway.address) as peer:
        assert gateway.process is not None
        peer.send(
            peer.request(1, "/apache.rocketmq.v2.MessagingService/Telemetry", None, ("x-mq-client-id", "c"))
        )
        gateway.process.send_signal(signal.SIGTERM)  # it waits for the call, whose end never comes
        peer.until(lambda each: each.kind == GOAWAY)

        def ended() -> bool:
            """Once a signal is no longer one with the first."""
            gateway.process.send_signal(signal.SIGTERM)
            return gateway.process.poll() is not None

        wait_until(ended)
        assert gateway.process.returncode == 1
    assert "a second signal" in gateway.log.read_text().splitlines()[-1]


def test_the_end_of_its_input_stops_it(tmp_path: Path) -> None:
    """As when the supervisor at its other end is killed."""
    ports = tmp_path / "ports.json"
    theirs, ours = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        words = gateway_words(tmp_path, lakeStopAtEndOfInput="true")
        process = start(*words, stdin=theirs, stdout=log, stderr=log)
    os.close(theirs)
    try:
        with os.fdopen(ours, "w"):
            wait_until(ports.exists)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
    assert not (tmp_path / "store" / "abort").exists()
