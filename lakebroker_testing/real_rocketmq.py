"""Starts the real Apache RocketMQ on free loopback ports: a name server, and a proxy with a broker in one JVM.

The jars come from Maven Central into `.cache/`; a JDK 17 and Maven must be on the PATH. Every process is
ended by its id.

Tests start very many of its JVMs for a short time. What such a JVM did was mostly to read classes and to compile them well:
the second compiler is off here, and the classes come from an archive (class data sharing) that the first start makes.
`MeasuredRocketMQ` has neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import CACHE, PATIENT
from lakebroker_testing.java_program import compiled
from lakebroker_testing.ports import free_ports, is_open
from lakebroker_testing.programs import START_S, ProcessError, output_of, until_ready

VERSION = "5.5.0"
_CACHE = CACHE / f"rocketmq-{VERSION}"
_LOOPBACK = "127.0.0.1"
_OPENED = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
]
_SHORT_LIVED = [
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xlog:disable",  # of an archive that does not fit
    "-Xlog:all=error:stderr",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",  # else every pointer of the archive is changed at each start
    "-Dtls.server.mode=disabled",  # else a start makes an RSA key for each of its servers
]
_NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER = "org.apache.rocketmq.broker.BrokerStartup"
_PROXY = "org.apache.rocketmq.proxy.ProxyStartup"
_ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
_PATIENT = {
    **PATIENT,
    **dict.fromkeys(("waitTimeMillsInHeartbeatQueue", "waitTimeMillsInLitePullQueue"), "60000"),
}
"""Options of a broker with which it refuses no call because the machine is busy with other work. The proxy's limits are constants."""
_RESTLESS = ("TransactionalOp", "TimerFlush")
"""Threads (15 characters of their names) with which a broker without any work was seen to use 0.4 of a processor."""


def jars() -> Path:
    """The folder of RocketMQ's jars, fetched at first use. Raises ProcessError without Java or Maven."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise ProcessError(f"{tool} is not on the PATH; the real RocketMQ needs a JDK 17 and Maven")
    folder = _CACHE / "lib"
    with filled_once(_CACHE) as missing:
        if missing:
            _fetch(folder)
    return folder


def _archive() -> Path:
    """The classes of a name server, a broker and a proxy as a JVM wants them, made at first use. Raises ProcessError."""
    archive = _CACHE / "classes" / "rocketmq.jsa"
    jars()
    with filled_once(archive.parent) as missing:
        if missing:
            with tempfile.TemporaryDirectory() as folder:
                _Archiving(Path(folder), archive).run()
    return archive


def _fetch(folder: Path) -> None:
    command = [
        *("mvn", "-q", "-B", "-f", str(Path(__file__).with_name("real_rocketmq.pom.xml"))),
        *("dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"),
    ]
    output_of(command, f"Maven, which fetches RocketMQ {VERSION}")


class RocketMQ:
    """A name server and a broker (behind a proxy, unless `proxy` is False; none, unless `broker` is True) over the store
    in `folder`, in JVMs that start fast and compute slowly.

    `topics` maps names to (queues, message type), `groups` names to attributes, if they have any. `broker_options` are lines of `broker.conf`; the broker registers with
    `other_name_servers` too. Unless `patient` is False, the broker refuses no call because the machine is busy.
    """

    def __init__(
        self,
        folder: Path,
        topics: Mapping[str, tuple[int, str]],
        groups: Sequence[str] | Mapping[str, Mapping[str, str]] = (),
        *,
        proxy: bool = True,
        broker: bool = True,
        heap: str = "2g",
        other_name_servers: Sequence[str] = (),
        name_server_host: str = _LOOPBACK,
        patient: bool = True,
        **broker_options: str,
    ) -> None:
        self.folder = folder
        self.store = Path(broker_options.get("storePathRootDir", folder / "store"))
        self._topics = topics
        self._groups = groups if isinstance(groups, Mapping) else {name: {} for name in groups}
        self._proxy = proxy
        self._broker = broker
        self._heap = heap
        self._other_name_servers = other_name_servers
        self._name_server_host = name_server_host
        self._options = {**(_PATIENT if patient else {}), **broker_options}
        self.name_server_port, self.broker_port, self._ha_port, self.grpc_port, self._remoting_port = (
            free_ports(5)
        )
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._jvm = self._options_of_jvms()
        self.broker_start_s = 0.0
        """From starting the broker's process to its open port, s."""

    @property
    def address(self) -> str:
        """Where gRPC clients connect."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def broker_address(self) -> str:
        """Where the broker takes requests of the remoting protocol."""
        return f"127.0.0.1:{self.broker_port}"

    @property
    def pid(self) -> int:
        """The process of the broker (and the proxy in it)."""
        return self._processes[-1][1].pid

    def __enter__(self) -> RocketMQ:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when the ports are open. Raises ProcessError."""
        self._configure()
        self._run(
            "namesrv",
            "256m",
            _NAME_SERVER,
            "-c",
            str(self.folder / "namesrv.conf"),
            port=self.name_server_port,
            host=self._name_server_host,
        )
        if not self._broker:
            return
        name_server = self._name_servers()
        broker = str(self.folder / "broker.conf")
        began = time.monotonic()
        if self._proxy:
            proxy = str(self.folder / "proxy.json")
            self._run(
                *(
                    "proxy",
                    self._heap,
                    _PROXY,
                    "-pm",
                    "local",
                    "-n",
                    name_server,
                    "-bc",
                    broker,
                    "-pc",
                    proxy,
                ),
                port=self.grpc_port,
            )
        else:
            self._run("broker", self._heap, _BROKER, "-n", name_server, "-c", broker, port=self.broker_port)
        self.broker_start_s = time.monotonic() - began
        self._calm()

    def _calm(self) -> None:
        """Threads that go round and round, whatever is to do, get the processor when nobody else wants it."""
        with contextlib.suppress(OSError):  # there is no /proc, or the broker has ended
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                    if (task / "comm").read_text().startswith(_RESTLESS):
                        os.setpriority(os.PRIO_PROCESS, int(task.name), 19)

    @property
    def name_server(self) -> str:
        """Address of its name server."""
        return f"{self._name_server_host}:{self.name_server_port}"

    def kill(self) -> None:
        """SIGKILL for all of them."""
        for _, process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def terminate(self, timeout_s: float = START_S) -> None:
        """SIGTERM, the last started first; waits for each. A name server, which has written everything before it answered, is killed:
        its end would take three seconds."""
        for name, process in reversed(self._processes):
            if name == "namesrv":
                process.kill()
            else:
                process.terminate()
            process.wait(timeout_s)
        self._processes.clear()

    def start_cluster_proxy(self, name_server: str) -> None:
        """A proxy of its own on `address`, which finds brokers through this name server. It ends where none has registered yet,
        and is started again then. Raises ProcessError."""
        path = self.folder / "cluster-proxy.json"
        proxy = json.loads((self.folder / "proxy.json").read_text())
        path.write_text(json.dumps({**proxy, "namesrvAddr": name_server, "proxyMode": "CLUSTER"}))
        arguments = ("-pm", "cluster", "-n", name_server, "-pc", str(path))
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._run("cluster-proxy", self._heap, _PROXY, *arguments, port=self.grpc_port)
            except ProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return

    def mqadmin(self, *arguments: str) -> str:
        """What `mqadmin` prints for a command. Raises ProcessError when it fails."""
        command = [*self._java("256m"), _ADMIN, *arguments, "-n", self.name_server]
        return output_of(command, f"mqadmin {' '.join(arguments)}", env=self._environment())

    def java(self, source: Path, *arguments: str, timeout_s: float = 300.0) -> str:
        """What a program of one source file prints, run with RocketMQ's classes. Raises ProcessError, also when it is
        ended because it did not end itself."""
        command = [*self._program(source), *arguments]
        return output_of(command, source.name, env=self._environment(), timeout_s=timeout_s)

    def java_process(self, source: Path, errors: IO[bytes]) -> subprocess.Popen[str]:
        """A program of one source file with RocketMQ's classes, in `folder`, its standard input and output as pipes."""
        return subprocess.Popen(
            self._program(source),
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        )

    def _run(self, name: str, heap: str, *command: str, port: int, host: str = _LOOPBACK) -> None:
        output = self.folder / f"{name}.out"
        with output.open("ab") as out:
            process = subprocess.Popen(
                [*self._java(heap), *command], stdout=out, stderr=out, env=self._environment()
            )
        self._processes.append((name, process))
        until_ready(f"RocketMQ's {name} on port {port}", process, output, lambda: is_open(host, port))

    def _options_of_jvms(self) -> list[str]:
        return [*_SHORT_LIVED, f"-XX:SharedArchiveFile={_archive()}"]

    def _name_servers(self) -> str:
        return ";".join((self.name_server, *self._other_name_servers))

    def _program(self, source: Path) -> list[str]:
        library = f"{jars()}/*"
        return [*self._java("256m", str(compiled(source, library))), source.stem]

    def _java(self, heap: str, *more_classes: str) -> list[str]:
        # an archive fits class paths that begin as its own
        classes = ":".join((f"{jars()}/*", str(self.folder), *more_classes))
        sizes = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=2g"]
        places = [f"-Duser.home={self.folder}", f"-Djava.io.tmpdir={self.folder}"]
        return ["java", *_OPENED, *sizes, *self._jvm, *places, "-cp", classes]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.folder), "RMQ_PROXY_HOME": str(self.folder)}

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "conf").mkdir(exist_ok=True)
        name_server = self._name_servers()
        options = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": name_server,
            "listenPort": str(self.broker_port),
            "haListenPort": str(self._ha_port),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "autoCreateTopicEnable": "false",
            **self._options,
        }
        _write_properties(self.folder / "broker.conf", options)
        _write_properties(
            self.folder / "namesrv.conf",
            {"listenPort": str(self.name_server_port), "bindAddress": self._name_server_host},
        )
        proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": name_server,
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": self._remoting_port,
            "localServeAddr": "127.0.0.1",
            "tlsTestModeEnable": True,
            "useEndpointPortFromRequest": True,
            "proxyMode": "LOCAL",
        }
        (self.folder / "proxy.json").write_text(json.dumps(proxy))
        config = self.store / "config"
        if config.exists():
            return
        config.mkdir(parents=True)
        version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
        topics = {name: _topic(name, queues, kind) for name, (queues, kind) in self._topics.items()}
        groups = {name: _group(name, attributes) for name, attributes in self._groups.items()}
        _write_json(config / "topics.json", {"dataVersion": version, "topicConfigTable": topics})
        _write_json(
            config / "subscriptionGroup.json", {"dataVersion": version, "subscriptionGroupTable": groups}
        )


class MeasuredRocketMQ(RocketMQ):
    """The same with both compilers and the collector of its own scripts: for benchmarks. What it refuses is a part of what is measured."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, patient=False, **options)

    def _options_of_jvms(self) -> list[str]:
        return ["-XX:+UseG1GC"]

    def _calm(self) -> None:
        """What its threads cost is a part of what is measured."""


class _Archiving(RocketMQ):
    """One that serves a while, and leaves the classes that it loaded."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self._archive = archive
        super().__init__(folder, {})

    def run(self) -> None:
        """Raises ProcessError."""
        with self:
            _, proxy = self._processes.pop()
            proxy.terminate()
            proxy.wait(START_S)
        if not self._archive.exists():
            raise ProcessError(f"{_PROXY} left no {self._archive}")

    def _options_of_jvms(self) -> list[str]:
        return [*_SHORT_LIVED, f"-XX:ArchiveClassesAtExit={self._archive}"]


def _topic(name: str, queues: int, message_type: str) -> dict[str, object]:
    return {
        "topicName": name,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "order": False,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "attributes": {"message.type": message_type},
    }


def _group(name: str, attributes: Mapping[str, str]) -> dict[str, object]:
    return {
        "groupName": name,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "attributes": dict(attributes),
    }


def _write_properties(path: Path, options: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in options.items()))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
