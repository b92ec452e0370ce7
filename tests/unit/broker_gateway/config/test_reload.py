"""Options changed while the broker runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from broker_gateway.api.remoting.administration.configuration import OptionAdministration
from broker_gateway.api.remoting.administration.shown_options import ShownOptions
from broker_gateway.config.gateway import GROUPS, GatewayConfig, load_config
from broker_gateway.config.options import option_names
from broker_gateway.config.reload import RELOADABLE, Changes, Configuration
from broker_gateway.runtime.errors import OptionError
from broker_gateway.runtime.files import write_whole
from tests.support.waiting import LIMIT_S


def configuration(file: Path | None = None, **given: str) -> Configuration:
    return Configuration(load_config(file, given, {})[0], file)


def apply(running: Configuration, given: dict[str, str]) -> Changes:
    return asyncio.run(running.apply(given))


def test_a_change_tells_what_took_effect_and_what_waits() -> None:
    running = configuration()
    heard: list[GatewayConfig] = []
    running.on_change(heard.append)
    changes = apply(
        running, {"brokerPermission": "4", "listenPort": "20911", "autoCreateTopicEnable": "true"}
    )
    assert changes.effective == {"brokerPermission": ("6", "4")}
    assert changes.at_next_start == {"listenPort": ("10911", "20911")}
    assert changes.warnings == ()
    assert changes.kept is None
    assert [config.broker.broker_permission for config in heard] == [4]
    assert (heard[0].broker.listen_port, running.current.broker.listen_port) == (10911, 20911)
    assert running.current.store.ha_listen_port == 10912, "announced until the next start"


def test_a_bad_value_changes_nothing() -> None:
    running = configuration()
    before = running.current
    heard: list[GatewayConfig] = []
    running.on_change(heard.append)
    for name, value in (
        ("brokerPermission", "9"),
        ("brokerPermission", "4.0"),
        ("autoCreateTopicEnable", "yes"),
        ("fileReservedTime", "1_0"),
        ("aclEnable", "true"),
        ("traceOn", "perhaps"),
    ):
        with pytest.raises(OptionError, match=f"option {name}={value}"):
            apply(running, {"lakeLogLevel": "debug", name: value})
    assert running.current is before
    assert heard == []


def test_what_is_in_the_black_list_cannot_be_changed() -> None:
    running = configuration(configBlackList="maxMessageSize; brokerName")
    for name in ("maxMessageSize", "brokerName", "configBlackList"):
        with pytest.raises(OptionError, match=f"option {name} cannot be changed"):
            apply(running, {name: "5"})


def test_unknown_names_and_options_without_effect_are_warned_about_once() -> None:
    running = configuration(serverWorkerThreads="9")
    changes = apply(running, {"brokerPermision": "4", "serverLoadBalancerEnable": "false"})
    assert set(changes.warnings) == {
        "option brokerPermision is unknown and has no effect; did you mean brokerPermission?",
        "option serverLoadBalancerEnable=false has no effect: the remoting port serves administration only, within limits of our own",
    }
    assert changes.at_next_start == {"serverLoadBalancerEnable": ("true", "false")}
    assert running.current.other == {"serverWorkerThreads": "9", "serverLoadBalancerEnable": "false"}


def test_a_change_outlives_a_restart_when_there_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# mine\nbrokerName=mine\nlakeLogLevel=info\n")
    running = configuration(file)
    assert apply(running, {"lakeLogLevel": "debug", "fileReservedTime": "48"}).kept == file
    again = load_config(file, {}, {})[0]
    assert (again.broker.broker_name, again.lake.lake_log_level) == ("mine", "debug")
    assert again.store.file_reserved_time == 48
    assert (tmp_path / "broker.conf.bak").read_text().startswith("# mine")


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=mine\n")
    running = configuration(file)
    (tmp_path / "broker.conf.tmp").mkdir()
    with pytest.raises(OptionError, match=r"cannot be kept in .*broker\.conf"):
        apply(running, {"lakeLogLevel": "debug"})
    assert running.current.lake.lake_log_level == "info"


def test_no_line_of_its_own_can_be_put_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=mine\n")
    for given in ({"regionId": "a\nlakeTokenFile=/x"}, {"a\nlakeTokenFile": "/x"}):
        with pytest.raises(OptionError, match="a line break is not allowed"):
            apply(configuration(file), given)
    with pytest.raises(OptionError, match="1001 options in one change"):
        apply(configuration(), {f"o{number}": "1" for number in range(1001)})


def test_what_takes_effect_at_once_is_an_option() -> None:
    assert set(option_names(GROUPS)) >= RELOADABLE


def test_changes_that_come_together_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=mine\n")
    running = configuration(file)

    async def both() -> None:
        await asyncio.gather(
            running.apply({"fileReservedTime": "48"}),
            running.apply({"brokerPermission": "4"}),
            running.apply({"lakeLogLevel": "error"}),
        )

    asyncio.run(both())
    options = running.current.options()
    names = ("fileReservedTime", "brokerPermission", "lakeLogLevel")
    assert [options[name] for name in names] == ["48", "4", "error"]
    assert {*file.read_text().splitlines()} == {
        "brokerName=mine",
        "fileReservedTime=48",
        "brokerPermission=4",
        "lakeLogLevel=error",
    }


def test_a_change_whose_caller_goes_away_is_made_wholly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("retryMaxTimes=5\n")
    running = configuration(file)
    writing, go_on = threading.Event(), threading.Event()

    def slow(path: Path, text: str) -> None:
        writing.set()
        assert go_on.wait(LIMIT_S)
        write_whole(path, text)

    monkeypatch.setattr("broker_gateway.config.reload.write_whole", slow)
    administration = OptionAdministration(running, ShownOptions(running), 1)

    async def scenario() -> None:
        for change in (
            running.apply({"retryMaxTimes": "7"}),
            administration.change(b"retryMaxTimes=8", 2),
        ):
            writing.clear()
            go_on.clear()
            caller = asyncio.ensure_future(change)
            await asyncio.to_thread(writing.wait, 10)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            go_on.set()
            await running.apply({})  # changes are made one after the other

    asyncio.run(scenario())
    assert file.read_text() == "retryMaxTimes=8\n"
    assert running.current.broker.retry_max_times == 8
    assert administration.version.counter == 1


def test_a_file_that_says_otherwise_is_mended_by_the_value_in_force(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("retryMaxTimes=5\n")
    running = configuration(file)
    for said in ("retryMaxTimes=99\n", "# nothing\n"):
        file.write_text(said)
        changes = apply(running, {"retryMaxTimes": "5"})
        assert changes.kept == file
        assert changes.effective == {}
        assert "retryMaxTimes=5" in file.read_text().splitlines()
    before = file.stat()
    apply(running, {"retryMaxTimes": "5"})
    assert file.stat() == before, "nothing to mend"


def test_lines_of_the_file_are_those_that_are_read(tmp_path: Path) -> None:
    """A byte order mark is none of the first option's name, and a value may have what only Python breaks lines at."""
    file = tmp_path / "broker.conf"
    file.write_text("\ufefffileReservedTime=1\r\nrmqAddressServerSubGroup=a\u2028b\n", encoding="utf-8")
    given = {"fileReservedTime": "2"}
    asyncio.run(Configuration(load_config(None, {}, {})[0], file).apply(given))
    assert file.read_text(encoding="utf-8") == "fileReservedTime=2\nrmqAddressServerSubGroup=a\u2028b\n"


def test_what_waits_for_the_next_start_is_in_force_nowhere() -> None:
    running = configuration()
    heard: list[GatewayConfig] = []
    running.on_change(heard.append)
    changes = apply(running, {"maxInvisibleTimeMills": "20000"})
    assert set(changes.at_next_start) == {"maxInvisibleTimeMills"}
    apply(running, {"brokerPermission": "4"})
    assert [config.proxy.max_invisible_time_mills for config in heard] == [43_200_000, 43_200_000]
    assert heard[1].broker.broker_permission == 4
    assert running.current.proxy.max_invisible_time_mills == 20_000


def test_a_part_that_fails_keeps_no_other_from_hearing() -> None:
    running = configuration()
    heard: list[GatewayConfig] = []

    def broken(_: GatewayConfig) -> None:
        raise ValueError("broken")

    running.on_change(broken)
    running.on_change(heard.append)
    assert apply(running, {"brokerPermission": "4"}).effective == {"brokerPermission": ("6", "4")}
    assert len(heard) == 1
