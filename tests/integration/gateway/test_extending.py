"""A package with entry points, installed in a folder of its own, takes part in the calls of a broker."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import grpc
import pytest

from broker_gateway.protocol.codes import RequestCode, ResponseCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, ProcessError
from tests.support.packages.installed import found_by_processes, install
from tests.support.rocketmq.requests import ask
from tests.support.waiting import wait_until

_MORE = '''
import json
import os


class Keeper:
    """Refuses without a word; writes down what it saw."""

    def __init__(self, config):
        self.path = os.environ["EXAMPLE_SEEN"]

    def authenticate(self, rpc):
        from broker_gateway.api.extensions import RefusedError

        if rpc.metadata.get("x-word") != "please":
            raise RefusedError("say the word")

    def before(self, rpc):
        rpc.state["kind"] = type(rpc.request).__name__

    def after(self, rpc, outcome):
        with open(self.path, "a") as file:
            row = [rpc.path, rpc.state["kind"], [type(each).__name__ for each in outcome.responses]]
            file.write(json.dumps(row + [type(outcome.error).__name__]) + "\\n")


class Sink:
    def __init__(self, config):
        self.path = os.environ["EXAMPLE_SEEN"] + ".metrics"
        self.count = 0

    def publish(self, metrics):
        self.count += 1
        if self.count == 1:
            raise OSError("not yet")
        with open(self.path, "w") as file:
            file.write("\\n".join(each.name for each in metrics))

'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    found_by_processes(folder, monkeypatch)
    return folder


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the example writes down what it saw."""
    file = tmp_path / "seen"
    monkeypatch.setenv("EXAMPLE_SEEN", str(file))
    return file


def test_the_documented_example(tmp_path: Path, site: Path) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    project = tomllib.loads(next(text for kind, text in blocks if kind == "toml"))["project"]
    code = next(text for kind, text in blocks if kind == "python")
    install(site, "example_guard", code, project["entry-points"])
    with Gateway(tmp_path, **OPTIONS) as gateway:
        client = Client(gateway.address)
        refused = client.send("t", b"a secret").status
        assert (refused.code, refused.message) == (pb.FORBIDDEN, "broker-a takes no secrets")
        assert client.send("t", b"plain").status.code == pb.OK
        code_, (message,) = client.receive("t", "g")
        assert code_ == pb.OK
        assert message.body == b"plain"
        assert message.user_properties["seen-from"] == "127.0.0.1"
        blocked = Client(gateway.address)
        blocked.metadata = (*blocked.metadata, ("x-tenant", "blocked"))
        with pytest.raises(grpc.RpcError, match="this tenant may not call") as error:
            blocked.send("t", b"x")
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        blocked.channel.close()
        client.channel.close()
        assert gateway.terminate() == 0
    assert "extension loaded" in gateway.log.read_text()


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_authenticators_interceptors_and_sinks(
    tmp_path: Path, site: Path, seen: Path, transport: str
) -> None:
    install(
        site,
        "example_more",
        _MORE,
        {
            "lakebroker.authenticators": {"word": "example_more:Keeper"},
            "lakebroker.interceptors": {"seen": "example_more:Keeper"},
            "lakebroker.metrics_sinks": {"file": "example_more:Sink"},
        },
    )
    with Gateway(tmp_path, transport=transport, **OPTIONS, lakeMetricsSinkInterval="200") as gateway:
        client = Client(gateway.address)
        with pytest.raises(grpc.RpcError, match="say the word") as error:
            client.send("t", b"x")
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert not seen.exists(), "nothing was called"
        client.metadata = (*client.metadata, ("x-word", "please"))
        assert client.send("t", b"x").status.code == pb.OK
        assert client.receive("t", "g")[0] == pb.OK
        wait_until(lambda: seen.exists() and len(seen.read_text().splitlines()) == 2)
        sent, received = map(json.loads, seen.read_text().splitlines())
        assert sent == [
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            "SendMessageRequest",
            ["SendMessageResponse"],
            "NoneType",
        ]
        assert received[:2] == [
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            "ReceiveMessageRequest",
        ]
        assert received[2] == ["ReceiveMessageResponse"] * 3
        metrics = Path(f"{seen}.metrics")
        wait_until(lambda: metrics.exists() and "rocketmq_messages_in" in metrics.read_text())
        client.channel.close()
        assert gateway.terminate() == 0
    assert "OSError: not yet" in gateway.log.read_text()


def test_remoting_requests_are_seen_and_refused_too(tmp_path: Path, site: Path, seen: Path) -> None:
    points = {
        "lakebroker.authenticators": {"word": "example_more:Keeper"},
        "lakebroker.interceptors": {"seen": "example_more:Keeper"},
    }
    install(site, "example_more", _MORE, points)
    topic = {
        "topic": "t",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    put, word = {**topic, "order": "false"}, {"x-word": "please"}
    with Gateway(tmp_path, **OPTIONS) as gateway:
        for code, fields in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC, put),
            (RequestCode.GET_BROKER_CONFIG, {}),
            (RequestCode.HEART_BEAT, {"x-word": "at once"}),
        ):
            for port in (gateway.remoting_port, gateway.remoting_port - 2):
                refused = ask(f"127.0.0.1:{port}", code, **fields)
                assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "say the word")
        assert not seen.exists(), "nothing was called"
        assert ask(gateway.remoting_address, RequestCode.GET_TOPIC_CONFIG, **word, topic="t").code == (
            ResponseCode.TOPIC_NOT_EXIST
        )
        assert ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **put, **word).code == 0
        assert ask(gateway.remoting_address, RequestCode.GET_TOPIC_CONFIG, **word, topic="t").code == 0
        unwanted = {**put, "perm": 9}
        assert (
            ask(gateway.remoting_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **unwanted, **word).code != 0
        )
        wait_until(lambda: seen.exists() and len(seen.read_text().splitlines()) == 4)
        assert [json.loads(line) for line in seen.read_text().splitlines()] == [
            ["/remoting/GET_TOPIC_CONFIG", "Command", [], "RequestError"],
            ["/remoting/UPDATE_AND_CREATE_TOPIC", "Command", ["Command"], "NoneType"],
            ["/remoting/GET_TOPIC_CONFIG", "Command", ["Command"], "NoneType"],
            ["/remoting/UPDATE_AND_CREATE_TOPIC", "Command", [], "RequestError"],
        ]
        assert gateway.terminate() == 0


def test_a_sink_that_never_returns_does_not_hold_up_the_stop(tmp_path: Path, site: Path) -> None:
    code = (
        "import threading\n\n\nclass Stuck:\n    def __init__(self, config):\n        pass\n\n"
        "    def publish(self, metrics):\n        print('stuck', flush=True)\n        threading.Event().wait()\n"
    )
    install(site, "example_stuck", code, {"lakebroker.metrics_sinks": {"stuck": "example_stuck:Stuck"}})
    with Gateway(tmp_path, lakeMetricsSinkInterval="100") as gateway:
        wait_until(lambda: "stuck\n" in gateway.log.read_text())
        assert gateway.terminate() == 0
    assert gateway.log.read_text().count("stuck\n") == 1, "its next tick comes after its last"


def test_an_extension_that_cannot_be_loaded_ends_the_start(tmp_path: Path, site: Path) -> None:
    install(site, "example_none", "", {"lakebroker.interceptors": {"bad": "example_none:x"}})
    gateway = Gateway(tmp_path)
    with pytest.raises(ProcessError, match=re.escape("the extension bad (example_none:x)")):
        gateway.start()
    assert gateway.process is not None
    assert gateway.process.returncode == 254
    assert not gateway.store.exists()
