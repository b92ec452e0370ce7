"""gRPC's behaviour, the same on both transports, seen by grpcio's client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from tests.support.peers.echo_service import SERVICE, Served
from tests.support.peers.raw_http2 import DATA, RawPeer
from tests.support.waiting import LIMIT_S, wait_until

IDENTITY = {
    "request_serializer": BytesValue.SerializeToString,
    "response_deserializer": BytesValue.FromString,
}


def value(data: bytes) -> BytesValue:
    return BytesValue(value=data)


def unary(channel: grpc.Channel, method: str, data: bytes, **options: Any) -> bytes:
    call = channel.unary_unary(SERVICE + method, **IDENTITY)
    return bytes(call(value(data), timeout=LIMIT_S, **options).value)


def failure(channel: grpc.Channel, method: str, data: bytes, timeout: float = LIMIT_S) -> Any:
    """What a call that does not succeed raises."""
    streamed = method in ("Down", "AllAtOnce")
    make = channel.unary_stream if streamed else channel.unary_unary
    call = make(SERVICE + method, **IDENTITY)
    try:
        answer = call(value(data), timeout=timeout)
        found = list(answer) if streamed else answer
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"it succeeded with {found}")


def down(channel: grpc.Channel, data: bytes, method: str = "Down", **options: Any) -> list[bytes]:
    call = channel.unary_stream(SERVICE + method, **IDENTITY)
    return [each.value for each in call(value(data), timeout=LIMIT_S, **options)]


@pytest.mark.parametrize("method", ["Unary", "Later", "Coroutine"])
@pytest.mark.parametrize("size", [0, 1, 1000, 16_379, 16_380, 100_000, 3 << 20])
def test_a_call_is_answered(channel: grpc.Channel, method: str, size: int) -> None:
    assert unary(channel, method, b"a" * size) == b"a" * size


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 0), (2, 10), (1000, 1000), (40, 1 << 20)])
def test_responses_stream(channel: grpc.Channel, count: int, size: int) -> None:
    found = down(channel, f"{count} {size}".encode())
    expected = [bytes([number % 256]) * size for number in range(count)]
    assert found == expected + ([b"last", b"of all"] if count > 2 else [])


def test_responses_at_once(channel: grpc.Channel) -> None:
    assert down(channel, b"abc", "AllAtOnce") == [b"abc"] * 3


@pytest.mark.parametrize("sizes", [[], [0], [10] * 500, [2 << 20, 5, 3 << 20, 0]])
def test_requests_stream(channel: grpc.Channel, sizes: list[int]) -> None:
    call = channel.stream_unary(SERVICE + "Up", **IDENTITY)
    answer = call((value(b"u" * size) for size in sizes), timeout=LIMIT_S)
    assert int(answer.value) == sum(sizes)


def test_both_stream_in_turns(channel: grpc.Channel) -> None:
    call = channel.stream_stream(SERVICE + "Both", **IDENTITY)
    tick = threading.Semaphore(1)

    def requests() -> Iterator[BytesValue]:
        for number in range(200):
            assert tick.acquire(timeout=LIMIT_S)
            yield value(b"n%d" % number)

    seen = []
    for answer in call(requests(), timeout=LIMIT_S):
        seen.append(answer.value)
        tick.release()
    assert seen == [b"n%d" % number for number in range(200)]


@pytest.mark.parametrize("method", ["Unary", "Later", "Coroutine", "Down"])
def test_a_status_comes_with_its_message(channel: grpc.Channel, method: str) -> None:
    failed = failure(channel, method, b"F")
    assert failed.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert failed.details() == "not now: ä % \n 漢"


@pytest.mark.parametrize("method", ["Unary", "Coroutine", "Down"])
def test_a_bug_is_internal_and_says_nothing(channel: grpc.Channel, method: str) -> None:
    failed = failure(channel, method, b"X")
    assert failed.code() == grpc.StatusCode.INTERNAL
    assert "a bug" not in failed.details()


@pytest.mark.parametrize("path", ["Nothing", "../Elsewhere/Unary"])
def test_an_unknown_method(channel: grpc.Channel, path: str) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        unary(channel, path, b"")
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_metadata_and_peer_reach_the_service(channel: grpc.Channel) -> None:
    answer = unary(channel, "Unary", b"M", metadata=(("x-ask", "what is asked"), ("x-bin", b"\x00\xff")))
    assert answer.startswith(b"what is asked 127.0.0.1:")


def test_gzip_both_ways(served: Served, channel: grpc.Channel) -> None:
    data = b"squeeze" * 100_000
    if served.transport == "grpcio":  # which could not bound what a request decompresses to
        with pytest.raises(grpc.RpcError) as refused:
            unary(channel, "Unary", data, compression=grpc.Compression.Gzip)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        return
    assert unary(channel, "Unary", data, compression=grpc.Compression.Gzip) == data
    found = down(channel, b"5 100000", compression=grpc.Compression.Gzip)
    assert [len(each) for each in found] == [100_000] * 5 + [4, 6]


def test_a_request_beyond_the_limit(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        unary(channel, "Unary", b"l" * ((64 << 20) + 1))
    assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert unary(channel, "Unary", b"next") == b"next"


@pytest.mark.parametrize("method", ["Coroutine", "Later", "Down", "AllAtOnce"])
def test_a_deadline_ends_the_call_and_its_work(served: Served, channel: grpc.Channel, method: str) -> None:
    def ended() -> bool:
        assert failure(channel, method, b"W", timeout=0.3).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        return served.echo.cancelled > 0

    wait_until(ended)  # a call whose deadline is over before it is there is none of the service's


@pytest.mark.parametrize("method", ["Down", "AllAtOnce", "Both"])
def test_cancellation_reaches_the_service(served: Served, channel: grpc.Channel, method: str) -> None:
    if method == "Both":
        call = channel.stream_stream(SERVICE + method, **IDENTITY)(iter([value(b"W")]))
    else:
        call = channel.unary_stream(SERVICE + method, **IDENTITY)(value(b"W"))
    wait_until(lambda: served.echo.waiting == 1)
    call.cancel()
    wait_until(lambda: served.echo.cancelled == 1)
    assert unary(channel, "Unary", b"next") == b"next"


def test_a_client_that_vanishes(served: Served) -> None:
    with RawPeer(served.address) as peer:
        peer.send(peer.request(1, SERVICE + "Down", value(b"W").SerializeToString()))
        assert b"first" in peer.until(lambda each: each.kind == DATA).payload
    wait_until(lambda: served.echo.cancelled == 1)


def test_a_slow_reader_holds_its_producer_back(served: Served, channel: grpc.Channel) -> None:
    call = channel.unary_stream(SERVICE + "Down", **IDENTITY)(value(b"120 1000000"), timeout=LIMIT_S)
    for taken in range(1, 6):
        assert len(next(call).value) == 1_000_000
        for _ in range(20):  # in which it could go on
            unary(channel, "Unary", b"")
        assert served.echo.sent < taken + 60
    assert sum(1 for _ in call) == 121 - 5 + 1


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    with ThreadPoolExecutor(32) as pool:
        found = list(
            pool.map(lambda n: unary(channel, ("Unary", "Later", "Coroutine")[n % 3], b"%d" % n), range(400))
        )
    assert found == [b"%d" % n for n in range(400)]


@pytest.mark.parametrize("method", ["Unary", "Later", "Coroutine"])
def test_what_is_no_message(channel: grpc.Channel, method: str) -> None:
    call = channel.unary_unary(SERVICE + method)
    with pytest.raises(grpc.RpcError) as failed:
        call(b"\xff\xff\xff", timeout=LIMIT_S)
    assert failed.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)  # the latter: grpcio


def test_a_stop_lets_running_calls_end(served: Served, channel: grpc.Channel) -> None:
    call = channel.unary_stream(SERVICE + "Down", **IDENTITY)(value(b"100 100000"), timeout=LIMIT_S)
    next(call)
    served.begin_stop(LIMIT_S)
    assert sum(1 for _ in call) == 101
    served.stop()


def test_a_stop_ends_what_never_ends_as_retryable(served: Served, channel: grpc.Channel) -> None:
    call = channel.unary_stream(SERVICE + "Down", **IDENTITY)(value(b"W"), timeout=LIMIT_S)
    assert next(call).value == b"first"
    served.stop(0.5)
    with pytest.raises(grpc.RpcError) as failed:
        list(call)
    assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert served.transport == "grpcio" or failed.value.code() == grpc.StatusCode.UNAVAILABLE


def test_nothing_hangs_when_it_stops_under_load(served: Served, channel: grpc.Channel) -> None:
    outcomes: list[grpc.StatusCode | None] = []
    ending = threading.Event()

    def load() -> None:
        while not ending.is_set():
            try:
                assert unary(channel, "Later", b"x" * 1000) == b"x" * 1000
                outcomes.append(None)
            except grpc.RpcError as error:
                outcomes.append(error.code())

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(outcomes) > 200)
    served.stop(5.0)
    ending.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    allowed = {None, grpc.StatusCode.UNAVAILABLE}
    if served.transport == "grpcio":
        allowed.add(grpc.StatusCode.CANCELLED)  # what grpcio answers to calls it has taken and not begun
    assert set(outcomes) <= allowed
    assert None in outcomes
