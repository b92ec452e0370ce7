"""What the commands of the documents find: two brokers with messages, a lake, files, and addresses in place of those that are written."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.logs import LogWriter
from lakebroker_testing.prestarted import Process, run, start
from tests.support.logs.real_store import RealStore
from tests.support.waiting import LIMIT_S, wait_until

TOKEN = "0123456789abcdef-of-the-documents"
_SCHEMA = """{"type": "object", "required": ["id", "amount"],
 "properties": {"id": {"type": "string"}, "amount": {"type": "integer"}}}"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Server:
    """A command that goes on until it is stopped."""

    also: tuple[str, ...]
    """Arguments that are added: free ports, a folder of its own."""
    ready: str
    """An expression for what it says when it is there; its group is the address, if it has one."""
    stays: bool = False
    """Whether it goes on to the end: commands behind it speak to it."""
    ends_with: int = 0
    """Its status after SIGTERM; below 0 where it has nothing to end and leaves that to the signal."""


_FREE_PORTS = (
    *("--set", "grpcServerPort=0", "--set", "listenPort=0", "--set", "metricsPromExporterPort=0"),
    *("--set", "mappedFileSizeCommitLog=1048576", "--set", "bindAddress=127.0.0.1"),
    *(
        "--set",
        "brokerIP1=127.0.0.1",
        "--set",
        "grpcBindAddress=127.0.0.1",
        "--set",
        "lakeNamesrvListenPort=0",
    ),
)
SERVERS = {
    "gateway": Server(("--store", "{fresh}", *_FREE_PORTS), "boot success"),
    "namesrv": Server(("--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"), "boot success"),
    "serve": Server(("--listen", "127.0.0.1:0"), r"is served at \S+://(\S+)", stays=True),
    "sidecar": Server(
        ("--port", "0", "--set", "grpcBindAddress=127.0.0.1"), r"serves log .* at ([\d.]+:\d+)", stays=True
    ),
    "console": Server(("--port", "0"), r"is at http://"),
    "maintain": Server((), r"(?m)^reput_progress: "),
    "lag": Server((), "orders", ends_with=-signal.SIGTERM),
}
"""By the command. `maintain` is one with `--every`, `lag` with `--watch`."""
ASKS = ("erase",)
"""Commands that ask somebody at a terminal; nobody is there, so they get `--yes`."""
_ENDING = {"-p", "-m", "--check"}
"""Options with which `gateway` ends by itself."""
_ENDLESS = {"maintain": "--every", "lag": "--watch"}


class Setting:
    """Brokers a and b, of which b wants a token; a lake that is empty; a store of a broker that has stopped, and two of others."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.folder, self._ending = folder, ending
        self.lake, self.stopped = folder / "lake", folder / "stopped"
        self._began = datetime.now(UTC) - timedelta(hours=1)
        self._served: dict[str, list[str]] = {
            "serve": ["127.0.0.1:31337"],
            "serve, over TLS": ["lake-host:31337"],
            "sidecar": [],
        }
        self.reputs: list[list[str]] = []
        """What has filled the lake: words of commands that have run."""
        self._handle = ""
        self._number = 0
        token = folder / "token"
        token.write_text(f"{TOKEN}\n")
        token.chmod(0o600)
        own = {"mappedFileSizeCommitLog": str(8 << 20), "recallMessageEnable": "true"}
        self.a = ending.enter_context(Gateway(folder, brokerName="orders-a", lakeWithNamesrv="true", **own))
        self.b = Gateway(folder / "b", brokerName="orders-b", lakeTokenFile=str(token), **own)
        ending.callback(self.b.__exit__)
        self.environment = {
            **os.environ,
            **{"LAKEBROKER_GATEWAY": self.a.address, "COLUMNS": "200", "PYTHONPATH": str(ROOT)},
        }
        self._messages()
        self._other_brokers()
        self._files()

    def _messages(self) -> None:
        """Orders of which billing took all, and audit gave one up."""
        for topic, kind in (("reminders", "DELAY"), ("payments", "TRANSACTION"), ("chats", "LITE")):
            self.needed("topic", "create", topic, "--type", kind)
        client = Client(self.a.address)
        for n, key in enumerate(("order-1", "order-3", "order-4711", "customer-4711", "order-5")):
            body = b'{"id": "%s", "amount": %d}' % (key.encode(), n) if n else b"one"
            status = client.send("orders", body, tag=("paid", "sent")[n % 2], keys=[key]).status
            assert status.code == pb.OK, status
        for group in ("billing", "audit"):
            self._settle(client, group)
        client.close()
        self.a.terminate()  # with a stop the minute that runs is journaled, which no question would wait for
        self.a.start()
        self.environment["LAKEBROKER_GATEWAY"] = self.a.address

    def _settle(self, client: Client, group: str) -> None:
        settled = 0
        while settled < 5:
            _, messages = client.receive("orders", group)
            for message in messages:
                if group == "audit" and message.system_properties.keys[0] == "order-1":
                    assert client.dead_letter("orders", group, message, 1).status.code == pb.OK
                else:
                    client.ack("orders", group, message)
                settled += 1

    def _other_brokers(self) -> None:
        """Of broker b, and of brokers that are not lakebroker's."""
        with LogWriter(self.folder / "b" / "store", "orders-b") as writer:
            writer.messages(20)
        shutil.copytree(self.folder / "b" / "store", self.stopped)
        self.b.start()
        for name in ("c", "d"):
            RealStore(self.folder / f"rocketmq-{name}" / "store").messages(20)

    def _files(self) -> None:
        config = self.folder / "broker.conf"
        config.write_text(f"brokerName=orders-c\nstorePathRootDir={self.folder / 'rocketmq-c' / 'store'}\n")
        trials = [gateway.store / "config" for gateway in (self.a, self.b)]
        (self.folder / "ca.pem").write_text(
            "".join((each / "trial-certificate.pem").read_text() for each in trials)
        )
        for name, file in (("server.pem", "trial-certificate.pem"), ("server-key.pem", "trial-key.pem")):
            shutil.copy(trials[0] / file, self.folder / name)
        (self.folder / "questions.sql").write_text(
            "SELECT count(*) FROM messages;\nSELECT * FROM consumer_lag;\n"
        )
        for name in ("order.schema.json", "order-2.schema.json"):
            (self.folder / name).write_text(_SCHEMA)

    def told(self, text: str) -> str:
        """A command, a query or code with what is here in place of what is written: the whole table of it."""
        earlier, now = self._began, datetime.now(UTC)
        for written, here in (
            (r"\ba:8081,b:8081\b", f"{self.a.address},{self.b.address}"),
            (r"(127\.0\.0\.1|localhost|broker-host|broker-a|\ba):8081\b", self.a.address),
            (r"(127\.0\.0\.1|broker-host|\bns|\bns-a):9876\b", f"127.0.0.1:{self.a.name_server_port}"),
            (r"127\.0\.0\.1:5557", f"127.0.0.1:{self.a.metrics_port}"),
            (r"host-a:8091,host-b:8091", ",".join(self._served["sidecar"])),
            (r"127\.0\.0\.1:31337", self._served["serve"][-1]),
            (r"lake-host:31337", self._served["serve, over TLS"][-1]),
            (r"(--token-file|--tls-ca) (?=\w+)", rf"\1 {self.folder}/"),
            (r"\./store|/var/lib/lakebroker/store", str(self.a.store)),
            (r"\./lake\b|/mnt/lake\b|/srv/lake\b|s3://bucket/lake\b", str(self.lake)),
            (r"/backup/lake\b", str(self.folder / "backup")),
            (r"/opt/rocketmq/conf/broker\.conf", str(self.folder / "broker.conf")),
            (r"/home/rocketmq/store", str(self.folder / "rocketmq-d" / "store")),
            (r"\bDIR\b", str(self.stopped)),
            (r"\bHANDLE\b", self._handle or "HANDLE"),
            (r"(--as-of) 20\S+", rf"\1 {now:%Y-%m-%dT%H:%M:%SZ}"),
            (r"(--since|--to|--until) 20\S+", rf"\1 {earlier:%Y-%m-%dT%H:%M}"),
            (r"TIMESTAMP '20[^']+'", f"TIMESTAMP '{earlier:%Y-%m-%d %H:%M:%S}'"),
        ):
            text = re.sub(written, here, text)
        return text

    def needed(self, *words: str, **also: str) -> str:
        """Runs a command, which succeeds; returns what it prints."""
        done = self._run(list(words), "y\n", also)
        assert done.status == 0, (words, done)
        return done.output

    def run(self, words: list[str], **also: str) -> Outcome:
        """A command that ends by itself, told already; without `lakebroker`."""
        given = "y\n"
        if "<" in words:
            at = words.index("<")
            words, given = words[:at], (self.folder / words[at + 1]).read_text()
        if words[0] in ASKS:
            words = [*words, "--yes"]
        if "--check" in words:  # of what would be started
            words = [
                *words,
                *(each.format(fresh=self.folder / "checked") for each in SERVERS["gateway"].also),
            ]
        if words[0] == "store":  # no broker may have it open
            words = [str(self.stopped) if word == str(self.a.store) else word for word in words]
        done = self._run(words, given, also)
        if handle := re.search(r"^to take it back: lakebroker recall \S+ (\S+)$", done.output, re.MULTILINE):
            self._handle = handle[1]
        return done

    def _run(self, words: list[str], given: str, also: dict[str, str]) -> Outcome:
        done = run(*words, input=given, cwd=self.folder, env=self.environment | also)
        return Outcome(done.returncode, done.stdout, done.stderr)

    def server_of(self, words: list[str]) -> Server | None:
        """Whether a command goes on until it is stopped."""
        endless = _ENDLESS.get(words[0])
        if words[0] not in SERVERS or (endless and endless not in words) or _ENDING & {*words}:
            return None
        return SERVERS[words[0]]

    def serve(self, words: list[str], server: Server) -> Outcome:
        """Starts it, waits until it is there, and stops it with SIGTERM unless it stays. Returns what it said."""
        self._number += 1
        output = self.folder / f"server-{self._number}.log"
        also = [each.format(fresh=self.folder / f"fresh-{self._number}") for each in server.also]
        with output.open("wb") as out:
            process = start(
                *(*words, *also), cwd=self.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )
        self._ending.callback(_stopped, process)

        def said() -> re.Match[str] | None:
            return re.search(server.ready, output.read_text())

        wait_until(lambda: said() or process.poll() is not None, output.read_text)
        if (ready := said()) is None:
            return Outcome(process.returncode or 1, "", output.read_text())
        if server.stays:
            self._served[f"{words[0]}, over TLS" if "--tls-cert" in words else words[0]].append(ready[1])
            return Outcome(0, output.read_text(), "")
        process.send_signal(signal.SIGTERM)
        status = process.wait(LIMIT_S)
        return Outcome(0 if status == server.ends_with else status, output.read_text(), "")


def _stopped(process: Process) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
