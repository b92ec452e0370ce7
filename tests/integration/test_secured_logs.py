"""The reput and gateways that want a token or TLS: what is refused at once, what crosses the wire."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from broker_gateway.transport.certificates import trial_certificate
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import written
from lakebroker_testing.prestarted import run
from structured_streaming.errors import SourceError
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.sql import query, union_session
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.empty import empty_lake
from tests.support.peers.relay import Relay

TOKEN = "0123456789abcdef-secret"
COUNT = 300

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, token: Path) -> Iterator[Gateway]:
    """A gateway with a token, which takes TLS on all loopback addresses; its certificate is for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("secured")
    written(folder / "store", "broker-a", COUNT, 1000)
    with Gateway(folder, brokerName="broker-a", lakeTokenFile=str(token)) as gateway:
        yield gateway


@pytest.fixture
def ca(secured: Gateway) -> Path:
    return secured.store / "config" / "trial-certificate.pem"


def refused(lake: Path, *arguments: str) -> str:
    """The one line with which a reput ends before Spark starts and a lake is made."""
    done = run("reput", "--lake", str(lake), *arguments)
    assert done.returncode == 1, done.stderr
    assert not lake.exists()
    (line,) = done.stderr.splitlines()
    assert TOKEN not in line
    return line


def test_no_token_and_a_wrong_one_are_refused_at_once(
    secured: Gateway, ca: Path, token: Path, tmp_path: Path
) -> None:
    lake, wrong = tmp_path / "lake", tmp_path / "wrong"
    line = refused(lake, "--brokers", secured.address)
    assert refused(lake, "--brokers", secured.address, "--once") == line
    assert line.startswith(f"lakebroker: broker {secured.address} answered DescribeLog with UNAUTHENTICATED")
    assert line.endswith("give --token-file")
    wrong.write_text("fedcba9876543210")
    wrong.chmod(0o600)
    assert "UNAUTHENTICATED" in refused(
        lake, "--brokers", secured.address, "--tls-ca", str(ca), "--token-file", str(wrong)
    )
    missing = tmp_path / "missing"
    assert str(missing) in refused(lake, "--brokers", secured.address, "--token-file", str(missing))


def test_a_certificate_that_is_not_trusted(secured: Gateway, tmp_path: Path) -> None:
    other, _ = trial_certificate(tmp_path / "other", "127.0.0.1")
    line = refused(tmp_path / "lake", "--brokers", secured.address, "--tls-ca", str(other))
    assert line.startswith(f"lakebroker: broker {secured.address} has a certificate that is not trusted: ")
    assert "--tls-ca FILE" in line


def test_a_certificate_for_other_names(tmp_path: Path) -> None:
    with Gateway(tmp_path, grpcBindAddress="127.0.0.2") as gateway:
        address = f"127.0.0.2:{gateway.grpc_port}"
        ca = gateway.store / "config" / "trial-certificate.pem"
        line = refused(tmp_path / "lake", "--brokers", address, "--tls-ca", str(ca))
    assert line.startswith(f"lakebroker: broker {address} has a certificate for other names")


def test_a_port_without_tls_is_not_spoken_to_in_plaintext(ca: Path, tmp_path: Path) -> None:
    with Gateway(tmp_path, tlsTestModeEnable="false") as gateway:
        line = refused(tmp_path / "lake", "--brokers", gateway.address, "--tls-ca", str(ca))
    assert line.startswith(f"lakebroker: broker {gateway.address} speaks no TLS on that port")


def test_a_wrong_address_is_refused_at_once(tmp_path: Path) -> None:
    address = "no-such-host.invalid:8081"
    line = refused(tmp_path / "lake", "--brokers", address)
    assert line == f"lakebroker: no broker at {address}: its host name cannot be looked up"


def test_neither_token_nor_messages_cross_the_wire_in_plaintext(
    spark: SparkSession,
    secured: Gateway,
    ca: Path,
    token: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lake = tmp_path / "lake"
    assert spark.range(1).count() == 1
    with Relay(secured.address) as line:
        run_reput(
            ReputOptions(str(lake), brokers=line.address, once=True, token_file=str(token), tls_ca=str(ca))
        )
        sent = bytes(line.seen)
    assert len(sent) > COUNT * 1000
    body = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["body"])["body"][0].as_py()
    assert body[:16] not in sent
    assert TOKEN.encode() not in sent
    assert TOKEN not in "".join(capfd.readouterr())
    assert assert_exact(lake, secured.store)["messages"] == COUNT


def test_executors_need_none_of_the_driver_s_files(
    secured: Gateway, ca: Path, token: Path, tmp_path: Path
) -> None:
    own_ca, own_token = tmp_path / "ca.pem", tmp_path / "token"
    own_ca.write_bytes(ca.read_bytes())
    own_token.write_text(token.read_text())
    source = LakebrokerDataSource(
        {"brokers": secured.address, "tlsCa": str(own_ca), "tokenFile": str(own_token)}
    )
    reader = source.reader(source.schema())
    parts = reader.partitions()
    travelled: Any = pickle.loads(pickle.dumps(reader))
    own_ca.unlink()
    own_token.unlink()
    assert sum(batch.num_rows for part in parts for batch in travelled.read(part)) == COUNT


def test_spark_shows_neither_token_nor_authorities(
    spark: SparkSession, secured: Gateway, ca: Path, token: Path
) -> None:
    spark.dataSource.register(LakebrokerDataSource)
    read = spark.read.format("lakebroker").option("brokers", secured.address)
    rows = read.option("tlsCa", str(ca)).option("tokenFile", str(token)).load().select("broker")
    assert rows.count() == COUNT
    plan = rows._jdf.queryExecution().toString()
    shown = plan + rows._jdf.queryExecution().debug().toString() + str(spark.sparkContext.getConf().getAll())
    assert TOKEN not in shown
    assert "BEGIN CERTIFICATE" not in shown


def test_the_environments_token_reaches_a_session_that_was_there(
    spark: SparkSession, secured: Gateway, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its JVM was started without it. What hands it on is gone afterwards."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert spark.range(1).count() == 1
    lake = tmp_path / "lake"
    named = {"brokers": secured.address, "tls_ca": str(ca)}
    with pytest.raises(SourceError, match="UNAUTHENTICATED"):
        run_reput(ReputOptions(str(lake), once=True, **named))
    monkeypatch.setenv("LAKEBROKER_TOKEN", TOKEN)
    run_reput(ReputOptions(str(lake), once=True, **named))
    assert assert_exact(lake, secured.store)["messages"] == COUNT
    (lake / "reput_progress").rename(tmp_path / "progress")  # so that all of it is read of the log
    empty_lake(str(lake))
    session, tables = union_session(str(lake), {"brokers": secured.address, "tlsCa": str(ca)})
    assert [each.read_text() for each in temporary.rglob("token")] == [TOKEN]
    (count,) = query(session, "SELECT count(*) AS n FROM messages", tables=tables)["n"].to_pylist()
    tables.close()
    assert count == COUNT
    assert not list(temporary.rglob("token"))
