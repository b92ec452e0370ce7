"""The process that `EngineApart` has its engine in: `python -m structured_streaming.embedded.worker FD`.

Over the socket FD come others, one for each call; when it ends, the process does. Messages of a call are pickled values and
bytes, between processes of one program on one machine:

| call | asked | answered |
|---|---|---|
| open | `("open", arguments)`, the first one | `("opened",)`, then `("said", line)` whenever there is something to say |
| query | `("query", statement, parameters)` | `("rows", schema)`, `("batch",)` and its bytes for each batch, `("end",)` |
| describe | `("describe", statement)` | `("schema", schema)` |
| relations | `("relations",)` | `("relations", relations)` |
| is it alive | `("alive",)` | `("alive",)` |

At any time instead: `("failed", type, arguments, attributes)`. A further message of whoever asked, or the end of the connection,
cancels the call. Where the engine goes on all the same, whoever asked for that statement is told, and the process ends with the
status `NOT_STOPPED`: others may ask again. So it does, with the status `FATAL`, after a fatal error of DuckDB. The program
removes the temporary folder then.

When the socket FD ends, the program is gone: the process has `_GONE_S` to end what it does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.failures import FatalError, LakeAwayError
from structured_streaming.embedded.interface import Parameters
from structured_streaming.embedded.memory import bounded_memory
from structured_streaming.embedded.results import pieces
from structured_streaming.embedded.running import Running, Watch, not_stopped, started_thread
from structured_streaming.embedded.status import FATAL, NOT_STOPPED
from structured_streaming.errors import LakeError, NotThereError, is_away
from structured_streaming.scratch import remove_all
from structured_streaming.without_pandas import leave_pandas_out

PIECE_BYTES = 1 << 20
MOST_ROW_BYTES = 64 << 20
_GONE_S = 5.0


class Call(Watch):
    """Statements of one call. It may be cancelled before there are any."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(self._end)
        self._connection = connection
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        super().cancel()

    def _end(self, running: Running) -> None:
        """Ends the process; nobody else writes to the connection while the engine works."""
        with contextlib.suppress(OSError):
            os.set_blocking(self._connection.fileno(), False)
            self._connection.send(_failed(not_stopped(running)))
        os._exit(NOT_STOPPED)  # at once: the others are not to fail for what is removed meanwhile

    @contextlib.contextmanager
    def over(self, running: Running) -> Iterator[None]:
        with super().over(running):
            if self._cancelled:
                running.cancel()
            yield


class _Worker:
    """Answers calls."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def run(self) -> None:
        """Until the control ends."""
        first = self._next()
        if first is None:
            return
        _, arguments = first.recv()
        lock = threading.Lock()

        def tell(line: str) -> None:
            with lock, contextlib.suppress(OSError):
                first.send(("said", line))

        try:
            engine = EmbeddedEngine.open(**arguments, tell=tell)
        except Exception as error:
            first.send(_failed(error))
            return
        with engine, bounded_memory(arguments["limits"].memory_bytes):
            with lock:
                first.send(("opened",))
            while (connection := self._next()) is not None:
                try:
                    started_thread(_serve, engine, connection)
                except LakeError as error:
                    with connection, contextlib.suppress(OSError):
                        connection.send(_failed(error))

    def _next(self) -> Connection | None:
        data, files, _, _ = socket.recv_fds(self._control, 1, 1)
        return Connection(files[0]) if data and files else None


def _serve(engine: EmbeddedEngine, connection: Connection) -> None:
    """A call, until whoever asked closes it."""
    with connection, contextlib.suppress(OSError, EOFError):
        call = Call(connection)
        asked = connection.recv()
        try:
            answering = started_thread(_answer, engine, connection, call, asked)
        except LakeError as error:
            connection.send(_failed(error))
            return
        with contextlib.suppress(OSError, EOFError):
            connection.recv_bytes()
        call.cancel()
        answering.join()


class _GoneError(Exception):
    """Whoever asked is gone."""


def _answer(engine: EmbeddedEngine, connection: Connection, call: Call, asked: tuple[Any, ...]) -> None:
    def send(value: tuple[Any, ...], data: pa.Buffer | None = None) -> None:
        try:
            connection.send(value)
            if data is not None:
                connection.send_bytes(memoryview(data))
        except OSError as error:
            raise _GoneError from error

    with contextlib.suppress(_GoneError):
        try:
            _answered(engine, send, call, *asked)
        except _GoneError:
            raise
        except FatalError as error:
            if not error.earlier:
                with contextlib.suppress(_GoneError):
                    send(_failed(LakeError(f"{error.text}; the process of the engine was ended for it")))
            os._exit(FATAL)
        except Exception as error:
            send(_failed(error))


def _answered(
    engine: EmbeddedEngine,
    send: Callable[..., None],
    call: Call,
    what: str,
    statement: str = "",
    parameters: Parameters = (),
) -> None:
    if what == "alive":
        send(("alive",))
        return
    if what == "relations":
        send(("relations", engine.relations()))
        return
    if what == "describe":
        send(("schema", engine.describe(statement, call)))
        return
    with engine.query(statement, parameters, call) as reader:
        send(("rows", reader.schema))
        for batch in reader:
            for piece in pieces(batch, PIECE_BYTES):
                if piece.nbytes > MOST_ROW_BYTES:
                    raise LakeError(
                        f"a row has {piece.nbytes:,} bytes, of which {MOST_ROW_BYTES:,} can travel at most; ask for parts of "
                        "its values"
                    )
                send(("batch",), piece.serialize())
        send(("end",))


def _failed(error: Exception) -> tuple[Any, ...]:
    if isinstance(error, OSError) or (is_away(error) and not isinstance(error, NotThereError)):
        return "failed", LakeAwayError, (str(error),), {}
    if isinstance(error, LakeError):
        return "failed", type(error), error.args, dict(error.__dict__)
    if isinstance(error, MemoryError):
        text = "the statement needs more than the memory that it may use; give it more (--memory), or ask for less"
        return "failed", LakeError, (text,), {}
    return "failed", RuntimeError, ("".join(traceback.format_exception(error)).rstrip(),), {}


def _end_with(control: socket.socket) -> None:
    """Ends the process when the one that started it is gone, even where the engine cannot be closed. Nobody else removes its
    temporary folder then."""
    poll = select.poll()
    poll.register(control, 0)  # its end is always told
    poll.poll()
    time.sleep(_GONE_S)
    remove_all()
    os._exit(NOT_STOPPED)


def main() -> None:
    """Signals are the business of the process that started it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leave_pandas_out()
    try:
        control = socket.socket(fileno=int(sys.argv[1]))
        started_thread(_end_with, control)
        _Worker(control).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stderr.flush()
    os._exit(0)  # threads may be within calls that nobody waits for


if __name__ == "__main__":
    main()
