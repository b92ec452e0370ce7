"""The list of name servers: as an option, and as the address server gives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_gateway.app.supervisor import child_options
from broker_gateway.cluster.address_server import (
    MAX_ANSWER,
    AddressServerError,
    fetch_name_servers,
    parsed,
    url_parts,
)
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.config.registration import RegistrationOptions, name_server_addresses
from broker_gateway.runtime.errors import OptionError


def config(**options: str) -> GatewayConfig:
    return load_config(None, options, {})[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("h:9876", ["h:9876"]),
        (" h:1 ; 10.0.0.2:2;;h:1;", ["h:1", "10.0.0.2:2"]),
        ("[::1]:9876", ["[::1]:9876"]),
    ],
)
def test_addresses(text: str, expected: list[str]) -> None:
    assert name_server_addresses(text) == expected
    assert config(namesrvAddr=text).broker.namesrv_addr == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h", r"name server 1, address 'h': write it as host:port"),
        ("h:1;i", r"name server 2, address 'i'"),
        ("h:1;i:0", r"'i:0'.*1 to 65535"),
        ("h:1;i:65536", r"'i:65536'"),
        ("h:1,i:2", r"'h:1,i' is no host name"),
        ("http://h:1", r"'http://h' is no host name"),
        (";".join(f"h:{number}" for number in range(1, 66)), r"65 name servers: 64"),
    ],
)
def test_the_part_that_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=r"option namesrvAddr=.*" + said):
        config(namesrvAddr=text)


def test_the_environment_of_the_original_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "h:1")
    assert load_config(None, {})[0].broker.namesrv_addr == "h:1"
    assert load_config(None, {"namesrvAddr": "i:2"})[0].broker.namesrv_addr == "i:2"
    monkeypatch.setenv("NAMESRV_ADDR", "wrong")
    with pytest.raises(OptionError, match="'wrong'"):
        load_config(None, {})


@pytest.mark.parametrize(("given", "seconds"), [("0", 10), ("30000", 30), ("999999", 60)])
def test_the_period_is_clamped(given: str, seconds: int) -> None:
    assert config(registerNameServerPeriod=given).registration.period_s == seconds


def test_only_the_first_process_runs_a_name_server() -> None:
    folder = Path("/unused")
    given = config(lakeWithNamesrv="true", lakeNamesrvListenPort="9999", namesrvAddr="h:1")
    assert "lakeWithNamesrv" not in child_options(given, 0, folder)
    other = child_options(given, 1, folder)
    assert (other["lakeWithNamesrv"], other["namesrvAddr"]) == ("false", "127.0.0.1:9999;h:1")
    with pytest.raises(OptionError, match="lakeNamesrvListenPort=0"):
        child_options(config(lakeWithNamesrv="true", lakeNamesrvListenPort="0"), 1, folder)


def test_where_the_address_server_is() -> None:
    assert url_parts(RegistrationOptions()) == ("jmenv.tbsite.net", 8080, "/rocketmq/nsaddr")
    options = RegistrationOptions(rmq_address_server_domain="h:80", rmq_address_server_sub_group="mine")
    assert url_parts(options) == ("h", 80, "/rocketmq/mine")


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


@pytest.mark.parametrize("body", [b"h:1;i:2\n", b"\r\n h:1;i:2 \r\nmore", b"h:1;i:2"])
def test_the_first_line_of_the_answer_counts(body: bytes) -> None:
    assert parsed(OK + body, "url") == ["h:1", "i:2"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "no HTTP answer"),
        (b"SSH-2.0\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nh:1", "status 404"),
        (OK, "empty"),
        (OK + b"<html>", "name server 1"),
        (OK[:-2] + b"Transfer-Encoding: chunked\r\n\r\n3\r\nh:1\r\n0\r\n", "chunked"),
    ],
)
def test_other_answers_are_said_to_be_wrong(answer: bytes, said: str) -> None:
    with pytest.raises(AddressServerError, match=said):
        parsed(answer, "url")


def test_an_answer_without_an_end_is_cut_off() -> None:
    async def test() -> None:
        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert (await reader.readline()).startswith(b"GET /rocketmq/nsaddr HTTP/1.0")
            writer.write(OK + b"x" * (MAX_ANSWER + 1))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(endless, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            options = RegistrationOptions(rmq_address_server_domain=f"127.0.0.1:{port}")
            with pytest.raises(AddressServerError, match="more than 16384 bytes"):
                await fetch_name_servers(options)

    asyncio.run(test())
