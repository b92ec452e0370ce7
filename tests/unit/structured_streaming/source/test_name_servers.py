"""What name servers and brokers say of who is there: sound, damaged, or nothing."""

from __future__ import annotations

import json
import struct

import pytest

from lakebroker_testing.ports import free_ports
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source import remoting
from structured_streaming.source.name_servers import NameServers, masters, name_servers, target_of
from tests.support.peers.answering import answering, frame

FASTJSON = (
    b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"},'
    b'"b":{"brokerAddrs":{1:"10.0.0.3:10911"},"brokerName":"b","cluster":"{0:1}"}},"clusterAddrTable":{"c":["a","b"]}}'
)
LAKEBROKER = "brokerName=a\nlakeTransport=http2\ngrpcServerPort={}\n"


def test_masters_are_found_as_java_writes_them() -> None:
    assert masters(FASTJSON, "ns") == {"a": "10.0.0.1:10911"}
    assert masters(b'{"brokerAddrTable":{"a":{"brokerAddrs":{"0":"h:1"}}}}', "ns") == {"a": "h:1"}
    assert masters(b"{}", "ns") == {}


@pytest.mark.parametrize("body", [b"", b"[", b'{"brokerAddrTable":[]}', b"\xff", b"[" * 100_000])
def test_what_is_no_table_of_brokers_is_refused(body: bytes) -> None:
    with pytest.raises(SourceError, match=r"^ns:9876 answered what is no"):
        masters(body, "ns:9876")


def test_a_broker_serves_on_the_host_that_it_registered() -> None:
    assert target_of("a", "10.0.0.1:10911", LAKEBROKER.format(8081).encode()) == "broker:10.0.0.1:8081"
    assert target_of("a", "[::1]:10911", LAKEBROKER.format(8081).encode()) == "broker:[::1]:8081"


@pytest.mark.parametrize(
    ("name", "configuration", "said"),
    [
        ("a", "brokerName=a\nlistenPort=10911\n", "is no lakebroker"),
        ("b", LAKEBROKER.format(8081), "its name is 'a'"),
        ("a", LAKEBROKER.format(0), "its grpcServerPort is '0'"),
        ("a", LAKEBROKER.format("8081;x"), "its grpcServerPort is '8081;x'"),
    ],
)
def test_a_broker_that_has_no_log_service_is_left_out(name: str, configuration: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        target_of(name, "10.0.0.1:10911", configuration.encode())


def test_an_answer_is_its_body() -> None:
    with answering(frame({"code": 0, "opaque": 1, "flag": 1}, b"body")) as address:
        assert remoting.ask(address, remoting.GET_BROKER_CONFIG, 10.0) == b"body"
    whole = frame({"code": 0, "opaque": 1, "flag": 1}, b"body")
    with answering(*(whole[at : at + 1] for at in range(len(whole)))) as address:
        assert remoting.ask(address, remoting.GET_BROKER_CONFIG, 10.0) == b"body"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks no remoting protocol"),
        (struct.pack(">II", remoting.MAX_FRAME + 1, 2), "speaks no remoting protocol"),
        (struct.pack(">II", 6, 7) + b"{}", "speaks no remoting protocol"),
        (struct.pack(">II", 6, 1 << 24 | 2) + b"{}", "speaks no remoting protocol"),
        (frame({"code": 0, "opaque": 2}), "answered another request"),
        (frame([]), "answered another request"),
        (frame({"code": 1, "opaque": 1, "remark": "no"}), "refused request 26 with code 1: no"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(answer: bytes, said: str) -> None:
    with answering(answer) as address, pytest.raises(SourceError, match=said) as refused:
        remoting.ask(address, remoting.GET_BROKER_CONFIG, 10.0)
    assert not isinstance(refused.value, UnreachableError)


def test_a_server_that_says_nothing_or_half_of_it_is_waited_for_no_longer_than_asked() -> None:
    with (
        answering() as address,
        pytest.raises(UnreachableError, match=f"{address} did not answer within 0.3 s"),
    ):
        remoting.ask(address, remoting.GET_BROKER_CONFIG, 0.3)
    half = frame({"code": 0, "opaque": 1}, b"body")[:-2]
    with answering(half) as address, pytest.raises(UnreachableError, match=f"{address}: .*closed"):
        remoting.ask(address, remoting.GET_BROKER_CONFIG, 10.0)


def test_name_servers_that_do_not_answer_are_named() -> None:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    with answering(b"junk") as wrong, pytest.raises(UnreachableError, match="no name server answers") as told:
        NameServers([closed, wrong]).look()
    assert closed in str(told.value)
    assert wrong in str(told.value)


def test_one_that_answers_is_enough() -> None:
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    with answering(frame({"code": 0, "opaque": 1}, LAKEBROKER.format(8081).encode())) as broker:
        table = {
            "brokerAddrTable": {"a": {"brokerAddrs": {"0": broker}}, "b": {"brokerAddrs": {"0": closed}}}
        }
        with answering(frame({"code": 0, "opaque": 1}, json.dumps(table).encode())) as answers:
            found = NameServers([closed, answers]).look()
    assert found.targets == {"a": "broker:127.0.0.1:8081"}
    assert list(found.left_out) == ["b"]
    assert closed in found.left_out["b"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"namesrv": "h:9876,i:9876"}, "write it as host:port"),
        ({"namesrv": "h:9876", "brokers": "h:8081"}, "give one"),
        ({"namesrv": "h:9876", "tokenfile": "token"}, "needs --tls-ca"),
        ({"namesrv": ";".join(f"h:{port}" for port in range(1, 100))}, "64 are allowed"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        name_servers(options)


def test_a_list_of_name_servers() -> None:
    assert name_servers({"namesrv": " h:9876; [::1]:9876;h:9876;"}) == ["h:9876", "[::1]:9876"]
