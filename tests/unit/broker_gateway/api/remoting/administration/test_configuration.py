"""Options changed while the broker runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_gateway.api.remoting.administration.configuration import OptionAdministration
from broker_gateway.api.remoting.administration.shown_options import ShownOptions
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.config.reload import RELOADABLE, Configuration, changed_text
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError


def config(file: Path | None = None, **overrides: str) -> GatewayConfig:
    return load_config(file, overrides, {})[0]


def administration(
    file: Path | None = None, **overrides: str
) -> tuple[OptionAdministration, Configuration, list[GatewayConfig]]:
    """Also the options in force, and what listeners were told."""
    applied: list[GatewayConfig] = []
    configuration = Configuration(config(file, **overrides), file)
    configuration.on_change(applied.append)
    return OptionAdministration(configuration, ShownOptions(configuration), 1), configuration, applied


def test_every_changeable_option_is_one() -> None:
    assert set(config().options()) >= RELOADABLE


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("queryMessageThreadPoolNums", None, None),
        ("queryMessageThreadPoolNums", "7", "queryMessageThreadPoolNums=7"),
        ("namesrvAddr", None, None),
        ("storePathCommitLog", None, None),
        ("authenticationProvider", None, None),
        ("controllerAddr", None, "controllerAddr="),
        ("metricsLabel", None, "metricsLabel="),
        ("lakeLocation", None, "lakeLocation="),
    ],
)
def test_options_without_a_value_are_shown_where_the_original_has_an_empty_one(
    name: str, given: str | None, line: str | None
) -> None:
    overrides = {} if given is None else {name: given}
    shown = administration(**overrides)[0].shown().decode().splitlines()
    assert [each for each in shown if each.startswith(f"{name}=")] == ([] if line is None else [line])


def test_an_option_of_a_group_changes_and_the_others_stay() -> None:
    options, configuration, _ = administration(diskMaxUsedSpaceRatio="50", brokerName="b")
    before = configuration.current
    asyncio.run(options.change(b"fileReservedTime=1", 2))
    after = configuration.current
    assert after.store.file_reserved_time == 1
    assert after.store.disk_max_used_space_ratio == 50
    assert after.broker == before.broker
    assert after.overridden == before.overridden == {"diskMaxUsedSpaceRatio", "brokerName"}


@pytest.mark.parametrize(
    ("name", "value", "code", "why"),
    [
        ("brokerName", "x", ResponseCode.NO_PERMISSION, "brokerName cannot be changed.*restart"),
        ("nothing", "x", ResponseCode.INVALID_PARAMETER, "nothing is unknown"),
        ("deleteWhen", "25", ResponseCode.INVALID_PARAMETER, "deleteWhen=25"),
        ("retryMaxTimes", "-1", ResponseCode.INVALID_PARAMETER, "retryMaxTimes=-1"),
        ("fileReservedTime", "1", ResponseCode.NO_PERMISSION, "command line"),
    ],
)
def test_what_cannot_be_changed_is_named(name: str, value: str, code: int, why: str) -> None:
    options, configuration, applied = administration(fileReservedTime="3")
    before = configuration.current
    with pytest.raises(RequestError, match=why) as refused:
        asyncio.run(options.change(f"{name}={value}\ndeleteFileBatchMax=7".encode(), 2))
    assert refused.value.code == code
    assert (configuration.current, applied, options.version.counter) == (before, [], 0)


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("", {"a": "1"}, "a=1\n"),
        ("# a=0\na = 2\nb=3", {"a": "1"}, "# a=0\na=1\nb=3\n"),
        ("a=1\nb=2\na=3\n", {"a": "9"}, "a=9\nb=2\n"),
        ("! a\n\nb=x=y\n", {"b": "1", "c": "2"}, "! a\n\nb=1\nc=2\n"),
    ],
)
def test_the_file_keeps_its_other_lines(text: str, given: dict[str, str], expected: str) -> None:
    assert changed_text(text, given) == expected


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=5\n")
    options, configuration, applied = administration(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(RequestError, match=r"cannot be written.*nothing was changed"):
        asyncio.run(options.change(b"fileReservedTime=6\n", 2))
    assert applied == []
    assert configuration.current.store.file_reserved_time == 5
    assert options.version.counter == 0


def test_a_change_is_applied_and_makes_another_version(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=5\n")
    options, _, applied = administration(file)
    asyncio.run(options.change(b"fileReservedTime=6\n", 2))
    assert [each.store.file_reserved_time for each in applied] == [6]
    assert config(file).store.file_reserved_time == 6
    assert "\nfileReservedTime=6\n" in options.shown().decode()
    assert options.version_json() == '{"counter":1,"stateVersion":0,"timestamp":2}'


@pytest.mark.parametrize("body", [b"\xff", b"no pair"])
def test_a_body_that_is_no_properties_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="string2Properties error"):
        asyncio.run(administration()[0].change(body, 2))


def test_other_machines_are_told_what_reaches_the_broker() -> None:
    options, configuration, _ = administration(listenPort="0", grpcServerPort="0")
    configuration.bound(listen_port=5, grpc_port=6)
    shown = dict(line.split("=", 1) for line in options.public().decode().splitlines())
    assert (shown["listenPort"], shown["grpcServerPort"]) == ("5", "6")
    assert set(shown) == {
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "brokerIP1",
        "listenPort",
        "grpcServerPort",
        "lakeTransport",
    }


def test_options_are_turned_into_text_once_for_each_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    whole = GatewayConfig.options

    def counted(self: GatewayConfig) -> dict[str, str]:
        made.append(self)
        return whole(self)

    options, configuration, _ = administration(listenPort="0")
    monkeypatch.setattr(GatewayConfig, "options", counted)
    for _ in range(10):
        options.shown()
        options.public()
    assert made == [configuration.current]
    configuration.bound(listen_port=5)
    assert b"\nlistenPort=5\n" in options.shown()
    assert b"\nlistenPort=5\n" in options.public()
    assert made[1:] == [configuration.current]
