"""Options: where they come from, what is said about the wrong ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker_gateway.config.broker_options import default_ip
from broker_gateway.config.catalogue import ROWS
from broker_gateway.config.catalogue.row import Fate
from broker_gateway.config.document import options_markdown
from broker_gateway.config.gateway import GROUPS, IMPORTANT, load_config
from broker_gateway.config.options import option_names, parse_properties, read_file
from broker_gateway.runtime.errors import ModeError, OptionError
from store.delay_levels import parse_delay_levels
from store.log.flush import FlushMode


def written(folder: Path, text: str) -> Path:
    path = folder / "broker.conf"
    path.write_text(text)
    return path


def test_defaults_are_rocketmqs() -> None:
    config, warnings = load_config(None, {}, {})
    assert warnings == []
    assert config.broker.broker_name == "broker-a"
    assert config.broker.broker_cluster_name == "DefaultCluster"
    assert config.broker.listen_port == 10911
    assert config.broker.default_topic_queue_nums == 8
    assert config.broker.auto_create_topic_enable
    assert config.store.flush_disk_type is FlushMode.ASYNC_FLUSH
    assert config.store.mapped_file_size_commit_log == 1 << 30
    assert config.store.flush_interval_commit_log == 500
    assert config.store.store_path_root_dir == Path.home() / "store"
    assert config.proxy.grpc_server_port == 8081


def test_command_line_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = written(tmp_path, "brokerName=file\nbrokerClusterName=file\nlistenPort=1911\n")
    environment = {"LAKEBROKER_brokerName": "environment", "LAKEBROKER_brokerClusterName": "environment"}
    config, warnings = load_config(file, {"brokerName": "command"}, environment)
    assert warnings == []
    assert config.broker.broker_name == "command"
    assert config.broker.broker_cluster_name == "environment"
    assert config.broker.listen_port == 1911
    assert config.broker.broker_id == 0


def test_the_environment_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_config.__defaults__ == (os.environ,)
    monkeypatch.setenv("LAKEBROKER_brokerName", "from-environment")
    assert load_config(None, {})[0].broker.broker_name == "from-environment"


def test_a_file_is_key_value_lines(tmp_path: Path) -> None:
    file = written(
        tmp_path, "# comment\n\n! too\n  brokerName = a-b \r\nnamesrvAddr=h:1;i:2\nlakeLocation=s3://b?x=y\n"
    )
    assert read_file(file) == {"brokerName": "a-b", "namesrvAddr": "h:1;i:2", "lakeLocation": "s3://b?x=y"}
    assert load_config(file, {}, {})[0].lake.lake_location == "s3://b?x=y"


def test_an_unknown_option_is_a_warning_that_names_the_nearest(tmp_path: Path) -> None:
    config, warnings = load_config(written(tmp_path, "brokerNam=x\n"), {"qqqqqqqq": "1"}, {})
    assert config.broker.broker_name == "broker-a"
    assert warnings == [
        "option brokerNam is unknown and has no effect; did you mean brokerName?",
        "option qqqqqqqq is unknown and has no effect",
    ]


def test_what_cannot_be_switched_on_says_why() -> None:
    given = {"transientStorePoolEnable": "true", "fastFailIfNoBufferInStorePool": "false"}
    config, warnings = load_config(None, given, {})
    assert not config.store.warm_maped_file_enable
    assert config.store.flush_least_pages_when_warm_maped_file == 4096
    assert warnings == [
        "option transientStorePoolEnable=true has no effect: records go to the page cache at once and none are "
        "lost with the process"
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("listenPort", "70000", "option listenPort=70000: allowed: 0, or 3 to 65534$"),
        ("listenPort", "many", r"option listenPort=many: it is not an integer \(allowed: 0, or 3 to 65534\)"),
        ("listenPort", "1", "option listenPort=1: it leaves no room for the fast port, 2 below"),
        ("listenPort", "2", "option listenPort=2: it leaves no room for the fast port"),
        ("listenPort", "65535", "option listenPort=65535: it leaves no room for haListenPort, 1 above"),
        ("listenPort", "", "option listenPort=: it is not an integer"),
        (
            "brokerIP1",
            "localhost",
            "option brokerIP1=localhost: it is not an IP address.*an IPv4 or IPv6 address",
        ),
        ("brokerIP1", "10.1.2", "option brokerIP1=10.1.2: it is not an IP address"),
        ("brokerIP1", "fe80::1%eth0", "option brokerIP1=fe80::1%eth0: it is not an IP address"),
        (
            "storePathRootDir",
            " ",
            "option storePathRootDir= : a path is needed; give one, or leave the option",
        ),
        ("lakePortFile", "/", "option lakePortFile=/: it is a folder; name a file in it"),
        ("brokerName", "a b", r"option brokerName=a b: allowed: \^"),
        ("brokerId", "9223372036854775808", "option brokerId=9223372036854775808: allowed: -9223"),
        (
            "lakeBrokerAddresses",
            "foo..bar",
            "option lakeBrokerAddresses=foo..bar: 'foo..bar' is no IP address",
        ),
        ("lakeBrokerAddresses", "a-.b", "is no IP address, network or host name"),
        ("grpcServerPort", "99999999", "option grpcServerPort=99999999: allowed: 0 to 65535$"),
        ("namesrvAddr", "nowhere", "option namesrvAddr=nowhere: .*127.0.0.1:9876;192.168.0.1:9876"),
        ("namesrvAddr", "a:1;b:99999", "option namesrvAddr=a:1;b:99999: .*'b:99999'"),
        ("messageDelayLevel", "1s 5x", "option messageDelayLevel=1s 5x: .*'5x'"),
        ("brokerPermission", "8", "option brokerPermission=8: allowed: 0 to 7$"),
        ("sendThreadPoolQueueCapacity", "0", ": allowed: 1 to 10000000$"),
        ("serverWorkerThreads", "few", "option serverWorkerThreads=few: it is not an integer"),
        ("haSendHeartbeatInterval", "2147483648", "is out of range .allowed: -2147483648 to 2147483647"),
        ("traceOn", "yes", "option traceOn=yes: it is not a boolean .allowed: true or false"),
        ("serverWorkerThreads", "1_0", "option serverWorkerThreads=1_0: it is not an integer"),
        ("logicalDiskSpaceCleanForciblyThreshold", "x", "it is not a number"),
        ("logicalDiskSpaceCleanForciblyThreshold", "nan", "=nan: it is not a number"),
        ("logicalDiskSpaceCleanForciblyThreshold", "1_0.5", "it is not a number"),
        ("logicalDiskSpaceCleanForciblyThreshold", "1e999", "it is not a number"),
        ("autoCreateTopicEnable", "yes", "=yes: it is not a boolean .allowed: true or false"),
        ("autoCreateTopicEnable", "1", "=1: it is not a boolean"),
        ("fileReservedTime", "5.0", r"=5\.0: it is not an integer .allowed: 0 to 1000000"),
        ("fileReservedTime", "1_0", "=1_0: it is not an integer"),
        ("fileReservedTime", "\u0661", "it is not an integer"),
        ("fileReservedTime", "9" * 5000, "it is not an integer"),
        ("brokerRole", "SYNC_MASTER", r"brokerRole=SYNC_MASTER is refused: .*\(allowed: ASYNC_MASTER\)"),
        (
            "brokerRole",
            "SLAVE",
            r"option brokerRole=SLAVE is refused: replication .*\(allowed: ASYNC_MASTER\)",
        ),
        ("brokerRole", "KING", "option brokerRole=KING: .*allowed: ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("enableDLegerCommitLog", "true", "option enableDLegerCommitLog=true is refused: .*allowed: false"),
        ("enableControllerMode", "TRUE", "option enableControllerMode=true is refused: "),
        ("inSyncReplicas", "2", r"option inSyncReplicas=2 is refused: .*\(allowed: 1\)"),
        ("dLegerPeers", "n0-h:1", r"option dLegerPeers=n0-h:1 is refused: .*\(allowed: nothing\)"),
        ("metricsExporterType", "LOG", r"metricsExporterType=LOG is refused: .*\(allowed: DISABLE or PROM\)"),
        ("aclEnable", "true", "option aclEnable=true is refused: authentication"),
        ("authenticationEnabled", "true", "option authenticationEnabled=true is refused: authentication"),
        ("authorizationEnabled", "true", "option authorizationEnabled=true is refused: authentication"),
        ("flushDiskType", "SOMETIMES", "option flushDiskType=SOMETIMES: allowed: ASYNC_FLUSH, SYNC_FLUSH$"),
        ("autoCreateTopicEnable", "perhaps", "option autoCreateTopicEnable=perhaps: .*boolean"),
        (
            "mappedFileSizeCommitLog",
            "4096",
            "option mappedFileSizeCommitLog=4096: allowed: 1048576 to 4294967296$",
        ),
        ("lakeLogLevel", "loud", "option lakeLogLevel=loud: "),
        ("warmMapedFileEnable", "maybe", "option warmMapedFileEnable=maybe: .*boolean"),
        (
            "flushLeastPagesWhenWarmMapedFile",
            "0",
            "option flushLeastPagesWhenWarmMapedFile=0: allowed: 1 to ",
        ),
        ("lakePrefaultBytes", "-1", "option lakePrefaultBytes=-1: allowed: 0 to 268435456$"),
        (
            "lakePrefaultBytes",
            "268435457",
            "option lakePrefaultBytes=268435457: allowed: 0 to 268435456$",
        ),
        ("lakeSelfCheckInterval", "99", "option lakeSelfCheckInterval=99: allowed: 100 to "),
    ],
)
def test_a_bad_value_names_option_value_and_what_is_wrong(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_config(None, {name: value}, {})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"missing\.conf cannot be read"):
        load_config(tmp_path / "missing.conf", {}, {})
    path = tmp_path / "binary.conf"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(OptionError, match=r"binary\.conf cannot be read"):
        load_config(path, {}, {})
    with pytest.raises(OptionError, match=r"broker\.conf, line 2: 'flushDiskType' is no key=value"):
        load_config(written(tmp_path, "brokerName=a\nflushDiskType\n"), {}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokerId", "0"),
        ("autoCreateTopicEnable", "false"),
        ("flushDiskType", "SYNC_FLUSH"),
        ("lakePortFile", "/x"),
    ],
)
def test_values_come_as_text(name: str, value: str) -> None:
    config, warnings = load_config(None, {name: value}, {})
    assert warnings == []
    assert config.options()[name].lower() == value.lower()


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    config, _ = load_config(None, {"brokerIP1": "10.1.2.3", "lakeTokenFile": "/token"}, {})
    shown = {name: value for name, value in config.options().items() if value}
    text = "".join(f"{name}={value}\n" for name, value in shown.items())
    again, warnings = load_config(written(tmp_path, text), {}, {})
    assert warnings == []
    assert again.options() == config.options()


def test_every_option_has_one_name_and_a_description() -> None:
    names = option_names(GROUPS)
    assert len(names) == sum(len(options.model_fields) for options in GROUPS.values())
    assert set(IMPORTANT) <= {*names, *ROWS}
    assert all(field.description for options in GROUPS.values() for field in options.model_fields.values())


def test_a_master_has_the_id_0_whatever_was_given() -> None:
    config, warnings = load_config(None, {"brokerId": "7"}, {})
    assert config.broker.broker_id == 0
    assert warnings == ["option brokerId=7 is set to 0, as every master's"]


@pytest.mark.parametrize("given", ["-1", "-5", "-9223372036854775808"])
def test_a_master_may_be_given_a_negative_id_too(given: str) -> None:
    config, warnings = load_config(None, {"brokerId": given}, {})
    assert config.broker.broker_id == 0
    assert warnings == [f"option brokerId={given} is set to 0, as every master's"]


def test_integers_and_booleans_as_java_reads_them() -> None:
    given = {"fileReservedTime": "+048", "autoCreateTopicEnable": "FALSE", "brokerPermission": " 4 "}
    config, warnings = load_config(None, given, {})
    assert warnings == []
    assert (config.store.file_reserved_time, config.broker.broker_permission) == (48, 4)
    assert not config.broker.auto_create_topic_enable


def test_the_port_beside_the_replication_port_is_the_highest() -> None:
    assert load_config(None, {"listenPort": "65534"}, {})[0].store.ha_listen_port == 65535
    assert load_config(None, {"listenPort": "3"}, {})[0].broker.listen_port == 3


def test_paths_that_are_empty_are_not_given() -> None:
    names = ("tlsCertPath", "tlsKeyPath", "lakeTokenFile", "lakePeersFile")
    config, warnings = load_config(None, dict.fromkeys(names, ""), {})
    assert warnings == []
    assert [config.options()[name] for name in names] == [""] * 4
    assert config.proxy.tls_cert_path is None


def test_the_brokers_address_is_the_default_when_empty() -> None:
    assert load_config(None, {"brokerIP1": ""}, {})[0].broker.broker_ip1 == default_ip()
    assert load_config(None, {"brokerIP1": "::1"}, {})[0].broker.broker_ip1 == "::1"


def test_a_byte_order_mark_is_no_part_of_an_option(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xef\xbb\xbfbrokerName=zz\r\nbrokerClusterName=\xc3\xa9\r\n")
    assert read_file(path) == {"brokerName": "zz", "brokerClusterName": "\u00e9"}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_a_line_ends_where_java_ends_it(separator: str) -> None:
    found = parse_properties(f"a=1{separator}brokerName=evil\rb=2\r\nc=3\nd=4", "the request")
    assert found == {"a": f"1{separator}brokerName=evil", "b": "2", "c": "3", "d": "4"}


def test_a_variable_that_names_no_option_is_warned_about_with_the_nearest() -> None:
    environment = {
        "LAKEBROKER_brokrName": "x",
        "LAKEBROKER_Something": "x",
        "LAKEBROKER_SERVICE_HOST": "10.0.0.1",
        "LAKEBROKER_BROKERNAME": "x",
        "LAKEBROKER_serverWorkerThreads": "8",
        "LAKEBROKER_GATEWAY": "127.0.0.1:8081",
        "LAKEBROKER_TOKEN_FILE": "/token",
        "LAKEBROKER_LAKE": "/lake",
        "LAKEBROKER_EVIDENCE": "1",
        "LAKEBROKER_NAMESRV_listenPort": "9876",
        "BROKERNAME": "x",
    }
    config, warnings = load_config(None, {}, environment)
    assert config.broker.broker_name == "broker-a"
    assert warnings == [
        "environment variable LAKEBROKER_brokrName names no option and has no effect; did you mean "
        "LAKEBROKER_brokerName?",
        "environment variable LAKEBROKER_Something names no option and has no effect",
        "environment variable LAKEBROKER_BROKERNAME names no option and has no effect; did you mean "
        "LAKEBROKER_brokerName?",
    ]


def test_a_slave_with_an_id_is_refused_because_it_is_not_built() -> None:
    with pytest.raises(
        OptionError, match="brokerRole=SLAVE is refused: replication to slaves is not built yet"
    ):
        load_config(None, {"brokerRole": "SLAVE", "brokerId": "1"}, {})


def test_two_modes_that_exclude_each_other_have_their_own_exit_code() -> None:
    with pytest.raises(ModeError) as refused:
        load_config(None, {"enableControllerMode": "true", "enableDLegerCommitLog": "true"}, {})
    assert refused.value.exit_code == 252


def test_the_replication_port_follows_the_listening_port() -> None:
    assert load_config(None, {}, {})[0].store.ha_listen_port == 10912
    assert load_config(None, {"listenPort": "30911"}, {})[0].store.ha_listen_port == 30912
    assert load_config(None, {"haListenPort": "5"}, {})[0].store.ha_listen_port == 5


def test_name_servers_come_from_the_originals_environment_variable_too() -> None:
    assert load_config(None, {}, {"NAMESRV_ADDR": "h:1"})[0].broker.namesrv_addr == "h:1"
    given = {"namesrvAddr": "i:2"}
    assert load_config(None, given, {"NAMESRV_ADDR": "h:1"})[0].broker.namesrv_addr == "i:2"


def test_every_option_of_rocketmq_is_known_and_its_default_is_taken() -> None:
    effective = option_names(GROUPS)
    assert len(ROWS) >= 460
    for name, row in ROWS.items():
        assert (row.verdict.fate is Fate.EFFECTIVE) == (name in effective), name
        assert row.verdict.why or row.verdict.fate is Fate.EFFECTIVE
        if name not in effective:
            assert load_config(None, {name: row.default or ""}, {}) == (load_config(None, {}, {})[0], [])


def test_defaults_differ_from_rocketmqs_only_where_that_is_meant() -> None:
    shown = load_config(None, {}, {})[0].options()
    computed = {"brokerIP1", "storePathRootDir", "haListenPort"}
    differing = {
        name
        for name, row in ROWS.items()
        if row.verdict.fate is Fate.EFFECTIVE and name not in computed and shown[name] != (row.default or "")
    }
    assert differing == {"flushCommitLogLeastPages", "metricsPromExporterHost"}


def test_an_option_without_effect_says_why_and_is_kept_and_shown() -> None:
    config, warnings = load_config(None, {"serverWorkerThreads": "16"}, {})
    assert warnings == [
        "option serverWorkerThreads=16 has no effect: sizes threads or hand-overs between them; one event loop "
        "serves all calls"
    ]
    assert config.options()["serverWorkerThreads"] == "16"
    assert config.options()["serverSelectorThreads"] == "3"


def test_delay_levels_are_durations() -> None:
    assert parse_delay_levels("1s 2m 1h 1d") == (1000, 120_000, 3_600_000, 86_400_000)
    assert len(parse_delay_levels(load_config(None, {}, {})[0].store.message_delay_level)) == 18


def test_the_documentation_of_options_is_up_to_date() -> None:
    committed = Path(__file__).parents[4] / "docs" / "options.md"
    assert committed.read_text() == options_markdown(), (
        "python -m broker_gateway.config.document > docs/options.md"
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/stores/a\0b", "no NUL character"),
        ("/stores/" + "a" * 256, "a name in it at most 255"),
        ("/a" * 2048, "less than 4,096 bytes"),
    ],
)
@pytest.mark.parametrize("option", ["storePathRootDir", "lakeTokenFile"])
def test_a_path_that_there_cannot_be_is_no_option(option: str, path: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        load_config(None, {option: path}, {})
    load_config(None, {option: "/stores/" + "a" * 255}, {})
