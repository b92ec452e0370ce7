"""A broker in this process, without sockets: a real store in a temporary folder and the real `Broker` over it.

It is put together as `broker_gateway.app.startup` does it, called with protobuf requests, and lives by a `ManualClock`: time
stands still until the test advances it. A call that cannot be answered yet is begun, and answered by what comes later:

    waiting = broker.begin_receive("orders", "billing", wait_ms=5_000)
    broker.send("orders", b"one")
    assert waiting.messages[0].body == b"one"

`restart` stops it as SIGTERM does and starts it again; `crash` leaves the files as they are at this instant, as
`kill -9` does. What an exception in the broker lets through to the event loop is raised by the call of the test that
ran the loop (`EscapedError`). Not there: transports, name servers, the watchdog, compiled code.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from broker_gateway.api.extensions import Extensions
from broker_gateway.api.grpc.extended import around, within
from broker_gateway.app.broker import Broker
from broker_gateway.app.new_log import compare_with_lake
from broker_gateway.auth.grpc_calls import authorized
from broker_gateway.auth.policy import TokenPolicy
from broker_gateway.auth.rpcs import RPCS
from broker_gateway.config.gateway import GatewayConfig, config_of
from broker_gateway.config.reload import Configuration
from broker_gateway.journal.replay import Replayed
from broker_gateway.observability.metrics import Metrics
from broker_gateway.transport.context import CallContext
from broker_gateway.transport.methods import methods
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public_admin_pb2
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.calls import Call
from lakebroker_testing.clock import EscapedError, ManualClock, ManualLoop
from lakebroker_testing.crash_image import copy_at_rest
from lakebroker_testing.faults import FaultyStore, flip_byte
from lakebroker_testing.messages import MessagingCalls, receive_request
from store.errors import StoreError
from store.log.record import Host
from store.opening import StoreOptions

T = TypeVar("T")
_OPTIONS = {
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": str(1 << 20),
    "maxMessageSize": str(1 << 18),
    "minInvisibleTimeMillsForRecv": "10",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
    "grpcClientConsumerMaxLongPollingTimeoutMillis": "3600000",
    "lakePrefaultBytes": "0",
}


class InProcessClient(MessagingCalls):
    """A client of the broker by its id."""

    def __init__(self, broker: InProcessBroker, client_id: str | None) -> None:
        self._broker = broker
        self.client_id = client_id

    def call(self, method: str, request: Any, timeout: float | None = None) -> Any:
        """The response at this instant; `timeout` is the call's deadline, s. Raises NotAnsweredError, RpcError."""
        call = self.begin(method, request, timeout)
        if not call.done:
            self._broker.hang_up(call)
        return call.response

    def begin(self, method: str, request: Any, timeout: float | None = None) -> Call:
        """A call that may be answered later."""
        return self._broker.begin(method, request, client_id=self.client_id, timeout=timeout)

    def begin_receive(self, topic: str, group: str, **asked: Any) -> Call:
        """A ReceiveMessage that may wait; see `receive_request`."""
        return self.begin("ReceiveMessage", receive_request(topic, group, **asked))

    def receive(self, topic: str, group: str, **asked: Any) -> tuple[int, list[pb.Message]]:
        """Status code and messages of what is there now."""
        return super().receive(topic, group, **{"wait_ms": 0, **asked})


class InProcessBroker(InProcessClient):
    """The broker, and the client `tester` of it. Options by their names, as `InProcessBroker(retryMaxTimes="3")`.

    `folder`: of the store; None makes a temporary one, removed at the end. `index_run_bytes`: of log in a run of the
    queue index. `log_level`: of what is logged, where the process has not configured structlog. One at a time in a process, since the clock is the process's. Raises OptionError, StoreError, OSError.
    """

    store: FaultyStore
    broker: Broker
    loop: ManualLoop
    replayed: Replayed

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clock: ManualClock | None = None,
        extensions: Extensions | None = None,
        index_run_bytes: int = 1 << 20,
        log_level: str = "warning",
        **options: str,
    ) -> None:
        super().__init__(self, "tester")
        self._end = contextlib.ExitStack()
        if folder is None:
            folder = Path(self._end.enter_context(tempfile.TemporaryDirectory(prefix="lakebroker-")))
        self.folder = folder
        self.clock = clock or ManualClock()
        self._extensions = extensions or Extensions()
        self._index_run_bytes = index_run_bytes
        self._log_level = log_level
        self._one_tick = False
        self.options = {**_OPTIONS, "storePathRootDir": str(folder / "store"), **options}
        """What the next start takes."""

    def __enter__(self) -> Self:
        try:
            self._end.enter_context(self.clock.in_place())
            self._end.enter_context(_logs(self._log_level))
            self._start()
        except BaseException:
            self._end.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._end:
            if kind is None:
                self.stop()
            else:
                self._drop()

    @property
    def root(self) -> Path:
        """The store's folder."""
        return Path(self.options["storePathRootDir"])

    # -- time

    def advance(self, seconds: float) -> None:
        """Moves the clock on; timers and scheduled tasks on the way run at their times. Raises EscapedError."""
        self.loop.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Moves the clock on at once: what is due runs once, as after the process was stopped for a while."""
        self.loop.jump(seconds)

    def settle(self) -> None:
        """Runs what is ready. Calls do that; only who uses `broker` directly needs it."""
        self.loop.settle()

    # -- calls

    def client(self, client_id: str | None) -> InProcessClient:
        """Another client; None sends no client id."""
        return InProcessClient(self, client_id)

    def begin(
        self,
        method: str,
        request: Any,
        timeout: float | None = None,
        *,
        client_id: str | None = "tester",
        peer: str = "127.0.0.1:50000",
        gone: bool = False,
    ) -> Call:
        """Begins a call of MessagingService, Admin or AdminService; `request` may be bytes. `timeout`: deadline, s.

        `gone`: its client goes away once it is served, before the tick's end would answer it. On the event loop itself
        (`loop.call_soon`) it may be called too.
        """
        found = self._methods.get(method)
        if found is None:
            raise ValueError(f"there is no unary or server streaming call {method!r}")
        metadata = {} if client_id is None else {"x-mq-client-id": client_id}
        context = CallContext(metadata, peer, timeout, ("127.0.0.1", 8081))
        call = Call(method)
        self.loop.call_soon(call.invoke, found, request, context)
        if gone:
            self.loop.call_soon(call.cancel)
        if timeout is not None:
            self.loop.call_later(timeout, call.expire)
        if not self._one_tick and not self.loop.is_running():
            self.loop.settle()
        return call

    @contextlib.contextmanager
    def one_tick(self) -> Iterator[None]:
        """What is begun within is read in one tick of the event loop, at the end of the context."""
        self._one_tick = True
        try:
            yield
        finally:
            self._one_tick = False
            self.loop.settle()

    def hang_up(self, call: Call) -> None:
        """The client of a call goes away; it is not answered any more."""
        self.loop.call_soon(call.cancel)
        self.loop.settle()

    def telemetry(
        self, requests: AsyncIterator[service_pb2.TelemetryCommand], context: CallContext
    ) -> AsyncIterator[service_pb2.TelemetryCommand]:
        """A client's Telemetry. It is kept as long as this broker runs, as a transport keeps its calls: who forgets it would have
        its tasks destroyed."""
        stream = self.broker.messaging.Telemetry(requests, context)
        self._streams.append(stream)
        return stream

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine of the broker, such as `broker.administration.offset_changes.reset(...)`; raises what it raises."""
        return self.loop.complete(work)

    def do(self, work: Callable[[], T]) -> T:
        """Calls a function of the broker that wants to be on its event loop; raises what it raises."""

        async def called() -> T:
            return work()

        return self.run(called())

    def create_topic(self, name: str, queues: int = 1) -> None:
        """Makes a topic, or gives it more queues; fewer are refused with an RpcError."""
        self.call("PutTopic", admin_pb2.PutTopicRequest(topic=admin_pb2.Topic(name=name, queues=queues)))

    def create_group(self, name: str, retry_max_times: int = 16, fifo: bool = False) -> None:
        """Makes a consumer group, or changes it."""
        group = admin_pb2.Group(name=name, retry_max_times=retry_max_times, fifo=fifo)
        self.call("PutGroup", admin_pb2.PutGroupRequest(group=group))

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Lets a group go on at an offset of a queue, as `mqadmin resetOffsetByTime` does. Raises ServiceError."""
        self.run(self.broker.administration.offset_changes.reset(group, topic, queue_id, 0, offset))

    def committed(self, topic: str, group: str, queue_id: int = 0) -> int | None:
        """The committed offset of a group on a queue; None where it never was."""
        return self.broker.administration.offsets.known(group, topic, queue_id)

    # -- end, begin, damage

    def restart(self, **options: str) -> None:
        """Stops and starts it, with these options changed."""
        self.stop()
        self.options |= options
        self._start()

    def crash(self, **options: str) -> None:
        """Ends it at this instant and starts it over the files as they are; calls under way are never answered.

        What is in the page cache stays, as after `kill -9`: this is no power cut.
        """
        kept = self.root.with_name(self.root.name + ".kept")
        copy_at_rest(self.root, kept)
        self._drop()
        shutil.rmtree(self.root)
        kept.rename(self.root)
        self.options |= options
        self._start()

    def stop(self) -> None:
        """Stops it as SIGTERM does: waiting receives end with nothing, a snapshot is journaled, the store is closed.

        Nothing happens when it has ended already, as after a start that failed.
        """
        if self.loop.is_closed():
            return
        try:
            self.loop.complete(self.broker.drain())
            self.loop.complete(self.broker.stop())
        except BaseException:
            self._drop()
            raise
        self.loop.close()
        self.store.close()

    def flush(self) -> None:
        """Waits, in real time, until all of the log is on disk."""
        flushed = threading.Event()
        self.store.wait_flushed(self.store.max_offset, lambda error: flushed.set())
        flushed.wait()

    def flip_byte(self, pattern: str, position: int, mask: int = 0xFF) -> Path:
        """Damages a byte of the newest file of the store that fits `pattern`, such as `lakeindex/*`; which it was."""
        files = sorted(self.root.glob(pattern))
        if not files:
            raise ValueError(f"no file of {self.root} fits {pattern!r}")
        flip_byte(files[-1], position, mask)
        return files[-1]

    def _start(self) -> None:
        config, _ = config_of(self.options)
        self.store = self._open(config)
        self._streams: list[AsyncIterator[service_pb2.TelemetryCommand]] = []
        loop = self.loop = ManualLoop(self.clock, lambda: self.store.waited_for)
        metrics = Metrics(config.broker.broker_cluster_name, config.broker.broker_name)
        try:
            compare_with_lake(config, self.store)
            loop.complete(self._load(Configuration(config), metrics))
        except BaseException:
            self._drop()
            raise

    def _open(self, config: GatewayConfig) -> FaultyStore:
        return FaultyStore.open(
            config.store.store_path_root_dir,
            StoreOptions(
                broker=config.broker.broker_name,
                cluster=config.broker.broker_cluster_name,
                store_host=Host(config.broker.broker_ip1, config.broker.listen_port),
                segment_size=config.store.mapped_file_size_commit_log,
                flush=config.store.flush_disk_type,
                flush_interval_ms=config.store.flush_interval_commit_log,
                index_max_bytes=config.lake.lake_queue_index_max_bytes,
                index_run_bytes=self._index_run_bytes,
                time_ns=lambda: self.clock.wall_ns,
            ),
        )

    async def _load(self, configuration: Configuration, metrics: Metrics) -> None:
        self.broker = Broker(configuration, self.store, metrics, self._extensions)
        self.replayed = self.broker.load()
        self.broker.schedule(watchdog=False)
        extended = around(self._extensions)
        asked = authorized(TokenPolicy(configuration.current.lake.lake_token_file), RPCS)
        described = {
            service_pb2.DESCRIPTOR.services_by_name["MessagingService"]: self.broker.messaging,
            public_admin_pb2.DESCRIPTOR.services_by_name["Admin"]: self.broker.public_admin,
            admin_pb2.DESCRIPTOR.services_by_name["AdminService"]: self.broker.admin,
        }
        self._methods = {
            method.path.rpartition("/")[2]: method
            for service, implementation in described.items()
            for method in methods(service, implementation, within(extended, asked))
            if not method.client_streaming
        }

    def _drop(self) -> None:
        """Ends it without a word to anybody; the files are not its own any more. Nothing happens the second time."""
        if self.loop.is_closed():
            return
        with contextlib.suppress(EscapedError):
            self.loop.abandon()
        self.loop.close()
        with contextlib.suppress(StoreError, OSError):
            self.store.close()


@contextlib.contextmanager
def _logs(level: str) -> Iterator[None]:
    """Logs from that level on, unless the process has said already how it logs."""
    if structlog.is_configured():
        yield
        return
    # the usual processors, but for the trace: with rich's, an exception that a test brings about took a third of a second
    *usual, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*usual, plain], wrapper_class=structlog.make_filtering_bound_logger(level)
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
