"""The embedded engine in a process of its own, for who serves several people: `EngineApart`.

What one statement does cannot end the program that serves the others:

| what | then |
|---|---|
| values beyond the process's memory | an error of the statement (`memory.py`) |
| no memory for the extension `delta`, which ends the process | statements under way fail with a LakeError that says so; the next one starts another process |
| work that no interrupt ends, seconds after it was cancelled | whoever asked for it is told, and the process ends. Statements beside it that had no answer yet run again, once, in another process; the others fail with that LakeError |
| a fatal error of DuckDB, after which it answers nothing | the same, at once |
| work that leaves the process no turn to see that | the process is killed, and statements beside it run again as above. A cancelled call that has had no answer for long asks whether the process is alive |
| a lake that does not answer (an object store that hangs) | whoever waits for it is told, some seconds after the call was cancelled; the process goes on. Who waits for another process to open that lake is told at once |
| the program ends, however it does | its process sees that, and ends, whatever runs in it |

The first call of another process takes as long as its start, about a second.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

import pyarrow as pa

from structured_streaming.embedded.failures import CancelledError
from structured_streaming.embedded.interface import Parameters, Relation
from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.memory import ALLOCATOR
from structured_streaming.embedded.running import PATIENCE_S, Watch
from structured_streaming.embedded.status import FOR_ONE
from structured_streaming.errors import LakeError
from structured_streaming.scratch import remove_left

T = TypeVar("T")
_END_S = 10.0
_MORE_S = 5.0
"""Beyond what the process has to end itself."""
_ALIVE_S = 5.0
_LOOK_S = 0.1


class EngineEndedError(LakeError):
    """The engine's process ended while a statement ran."""

    def __init__(self) -> None:
        super().__init__(
            "the engine ended while the statement ran: one of those under way needed more than the memory that they may use, "
            "could not be stopped, or met a fatal error; ask again, and where it is this one, ask for less, or give it more memory (--memory)"
        )


class _BesideError(EngineEndedError):
    """It ended for another statement than this one, which had no answer yet."""


class EngineApart:
    """See `EmbeddedEngine`, whose calls these are."""

    def __init__(self, arguments: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        """See `open`."""
        self._arguments = arguments
        self._tell = tell
        self._lock = threading.Lock()
        """Held for no longer than a process needs to begin, or to end: a call that waits for it cannot be cancelled."""
        self._closed = False
        self._worker = _Worker(arguments, tell)
        try:
            self._worker.opened.result()
        except BaseException:
            self._worker.close()
            raise

    @classmethod
    def open(
        cls,
        location: str,
        limits: Limits = Limits(),
        source: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda line: None,
        *,
        strict: bool = False,
    ) -> Self:
        """As `EmbeddedEngine.open`; `tell` may be called by another thread. Raises LakeError."""
        return cls({"location": location, "limits": limits, "source": source, "strict": strict}, tell)

    def query(
        self, statement: str, parameters: Parameters = (), watch: Watch | None = None
    ) -> pa.RecordBatchReader:
        given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
        call, schema = self._answered(("query", statement, given), watch, "rows")

        def rows() -> Iterator[pa.RecordBatch | None]:
            with call:
                yield None  # taken below: a generator that never began closes nothing
                while (batch := call.batch(schema)) is not None:
                    yield batch

        found = rows()
        next(found)
        return pa.RecordBatchReader.from_batches(schema, found)

    def describe(self, statement: str, watch: Watch | None = None) -> pa.Schema:
        call, schema = self._answered(("describe", statement), watch, "schema")
        with call:
            return schema

    def relations(self, watch: Watch | None = None) -> list[Relation]:
        found: list[Relation]
        call, found = self._answered(("relations",), watch, "relations")
        with call:
            return found

    @property
    def pid(self) -> int:
        """Of the process that the next call goes to, unless it ended."""
        return self._worker.process.pid

    def close(self) -> None:
        """Ends what is under way, and the process."""
        with self._lock:
            self._closed = True
            self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answered(self, asked: tuple[Any, ...], watch: Watch | None, wanted: str) -> tuple[_Call, Any]:
        """A call and its first answer."""
        return _twice(lambda: self._asked(asked, watch, wanted))

    def _asked(self, asked: tuple[Any, ...], watch: Watch | None, wanted: str) -> tuple[_Call, Any]:
        call = self._begun(asked, watch)
        with _given_back(call):
            try:
                answer = call.answer(wanted)
            except EngineEndedError as error:
                if not call.cancelled and call.worker.ended_for_another():
                    raise _BesideError from error
                raise
        return call, answer

    def _begun(self, asked: tuple[Any, ...], watch: Watch | None) -> _Call:
        with self._lock:
            if self._closed:
                raise LakeError("the engine is closed")
            if self._worker.has_ended():
                self._tell("the engine ended, and is started again")
                self._worker.close()
                self._worker = _Worker(self._arguments, self._tell)
            worker = self._worker
        try:
            call = _Call(worker)
            with _given_back(call):
                if watch is not None:
                    call.enter(watch.over(call))  # type: ignore[arg-type]
                call.wait_until_opened()
                call.ask(asked)
        except EngineEndedError as error:  # it was about to end, and was asked nothing
            worker.ended_for_another()
            raise _BesideError from error
        return call


def _twice(ask: Callable[[], T]) -> T:
    """Once more where the process ended before there was an answer, for another statement."""
    try:
        return ask()
    except _BesideError:
        return ask()


class _Worker:
    """A process, and the socket that its calls' sockets go over. Raises EngineEndedError where it does not begin."""

    def __init__(self, arguments: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self.opened: Future[None] = Future()
        """Once the engine is; a LakeError where it cannot be."""
        self._killed = False
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "structured_streaming.embedded.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ALLOCATOR},
                start_new_session=True,  # ctrl-C is for the program
            )
        try:
            first = self.connected()
            first.send(("open", arguments))
        except BaseException:
            self.close()
            raise
        temporary = arguments["limits"].temp_folder
        threading.Thread(target=self._listen, args=(first, tell, temporary), daemon=True).start()

    def kill(self) -> None:
        """For one statement that was cancelled. The process is not asked again, though it may take a while to end."""
        self._killed = True
        self.process.kill()

    def is_alive(self) -> bool:
        """Whether it answers within some seconds."""
        try:
            with self.connected() as connection:
                connection.send(("alive",))
                return connection.poll(_ALIVE_S) and bool(connection.recv())
        except (EngineEndedError, EOFError, OSError):
            return False

    def has_ended(self) -> bool:
        return self._killed or self.process.poll() is not None

    def ended_for_another(self) -> bool:
        """Of a process that is ending: whether it ends because of another statement, which failed or was cancelled."""
        try:
            return self._killed or self.process.wait(_END_S) in FOR_ONE
        except subprocess.TimeoutExpired:
            return False

    def connected(self) -> Connection:
        """For one call. Raises EngineEndedError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise EngineEndedError from error
        return Connection(ours.detach())

    def close(self) -> None:
        self._control.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _listen(self, first: Connection, tell: Callable[[str], None], temporary: str) -> None:
        """Until the process ends, which may have left what its statements had on the disk."""
        with first, contextlib.suppress(EOFError, OSError):
            while True:
                what, *rest = first.recv()
                if what == "said":
                    tell(*rest)
                elif what == "failed":
                    self.opened.set_exception(_rebuilt(*rest))
                else:
                    self.opened.set_result(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
            remove_left(temporary)
        if not self.opened.done():
            status = self.process.poll()
            self.opened.set_exception(
                LakeError(
                    f"the engine's process ended before it was ready, with status {status}; its output says why"
                )
            )


class _Call(contextlib.AbstractContextManager["_Call"]):
    """One under way. A `Watch` looks after it as after a statement of this process."""

    is_stuck = False
    """The other process looks after that, too."""

    def __init__(self, worker: _Worker) -> None:
        """Raises EngineEndedError."""
        self.worker = worker
        self._connection = worker.connected()
        self._held = contextlib.ExitStack()
        self._held.callback(self._connection.close)
        self._lock = threading.Lock()
        self._asked = False
        self._cancelled = False
        self._done = False
        self._given_up = False
        self._overdue = threading.Timer(PATIENCE_S + _MORE_S, self._look_after)
        self._overdue.daemon = True

    def enter(self, context: contextlib.AbstractContextManager[Any]) -> None:
        """Holds it until the call ends."""
        self._held.enter_context(context)

    def wait_until_opened(self) -> None:
        """Raises LakeError where it cannot be, or the call is cancelled before."""
        while not wait([self.worker.opened], _LOOK_S).done:
            if self._cancelled:
                raise CancelledError(
                    "the statement was cancelled while the engine was started again, which waits for the lake; try again later"
                )
        self.worker.opened.result()

    def ask(self, asked: tuple[Any, ...]) -> None:
        with self._lock, self._alive():
            self._connection.send(asked)
            self._asked = True
            if self._cancelled:
                self._connection.send_bytes(b"c")

    def answer(self, wanted: str) -> Any:
        """What comes next. Raises LakeError, and what failed there."""
        with self._alive():
            what, *rest = self._connection.recv()
        if what == "failed":
            raise _rebuilt(*rest)
        assert what == wanted, what
        return rest[0]

    def batch(self, schema: pa.Schema) -> pa.RecordBatch | None:
        """The next rows; None behind the last."""
        with self._alive():
            what, *rest = self._connection.recv()
            if what == "batch":
                return pa.ipc.read_record_batch(pa.py_buffer(self._connection.recv_bytes()), schema)
        if what == "failed":
            raise _rebuilt(*rest)
        return None

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """From another thread, as often as it likes."""
        with self._lock:
            if not self._cancelled and not self._done:
                self._cancelled = True
                self._overdue.start()
                if self._asked:
                    with contextlib.suppress(OSError):
                        self._connection.send_bytes(b"c")

    def look(self) -> None:
        """There is nothing to look at: the other process does."""

    def _look_after(self) -> None:
        """Ends a process that does not even end itself: one that holds Python's lock has no turn for it. Where it has, this call waits
        for something else, and is given up."""
        if not self._is_overdue():
            return
        alive = self.worker.is_alive()
        with self._lock:
            if self._done or self._connection.poll():
                return
            if not alive:
                self.worker.kill()
                return
            self._given_up = True
            with socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)  # whoever waits for it sees the end

    def _is_overdue(self) -> bool:
        with self._lock:
            return not self._done and not self._connection.poll()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._done = True
            self._overdue.cancel()
        self._held.close()

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            if self._given_up:
                raise CancelledError(
                    "the statement was cancelled while it waited for the lake, which does not answer; try again later"
                ) from error
            raise EngineEndedError from error


@contextlib.contextmanager
def _given_back(call: _Call) -> Iterator[None]:
    """What fails within ends the call."""
    try:
        yield
    except BaseException:
        call.__exit__()
        raise


def _rebuilt(kind: type[Exception], arguments: tuple[Any, ...], state: Mapping[str, Any]) -> Exception:
    """An exception of the other process, whatever its class wants to be made of."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error
