"""Processes of `lakebroker` that are forked from one that has imported what commands need.

Imports and compiled code are nearly all of a gateway's start: 1.4 CPU seconds, of which a fork needs 0.1. Within `prestarted()` the
processes of `lakebroker_testing.gateway`, `start` and `run` are such forks; without it each is a fresh Python. A fork has its own
process id, environment with PYTHONPATH, folder and open files, takes signals and is killed as any process is, and ends with this one.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from structured_streaming.without_pandas import leave_pandas_out

ROOT = Path(__file__).resolve().parent.parent
"""Where the packages are: a checkout, or where they are installed."""
_PRELOADED = (
    "broker_gateway.app.startup",
    "broker_gateway.app.sidecar",
    "broker_gateway.nameserver.server",
    "broker_gateway.cli.questions.lake",
    "broker_gateway.cli.questions.brokers",
    "structured_streaming.union.tables",
    "structured_streaming.maintenance.maintain",
    "structured_streaming.reput",
    "typer.rich_utils",
)
"""Not DuckDB: a thread that its import starts would be lost in forks, which then abort as they end."""
_MOST_BYTES = 1 << 20
"""Of a request: arguments and environment. Linux allows a command little more."""
_STREAMS = 3
_LOOK_S = 0.2
"""Between two looks at a status that another thread may have read meanwhile."""


def command(*arguments: str) -> list[str]:
    """`lakebroker` with arguments, by this interpreter."""
    return [sys.executable, "-m", "broker_gateway.cli.main", *arguments]


class Forked:
    """A forked process, with the part of `subprocess.Popen` that tests use. The server tells its exit status over a pipe."""

    def __init__(self, words: list[str], pid: int, status: int) -> None:
        self.args = words
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._status)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self._ended(timeout) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing is sent to a process that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self._told(min(max(until - time.monotonic(), 0), _LOOK_S)) and time.monotonic() < until:
            pass
        return self.returncode

    def _told(self, within_s: float) -> bool:
        """Whether the status is known. Several threads may wait for it: one of them reads it, the others look at it again."""
        poller = select.poll()
        poller.register(self._status, select.POLLIN)
        if self.returncode is None and poller.poll(within_s * 1000):
            with self._lock:
                if self.returncode is None:
                    told = os.read(self._status, 32)
                    # a server that was killed sends nothing: nobody knows how the fork ended, and it counts as killed
                    self.returncode = os.waitstatus_to_exitcode(int(told)) if told else -signal.SIGKILL
        return self.returncode is not None


Process = subprocess.Popen[bytes] | Forked
Limits = Mapping[int, tuple[int, int]]
"""Of a process, by `resource.RLIMIT_...`: the soft and the hard one."""


class _Server:
    """The process that forks, started when the first fork is asked for; it ends when its socket is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment = dict(
            os.environ
        )  # taken before any test runs: packages on a test's PYTHONPATH must not reach the server
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, words: list[str], streams: list[int], **settings: Any) -> Forked:
        """Raises OSError when the server has ended, or cannot fork."""
        request = json.dumps({"words": words, **settings}).encode()
        if len(request) > _MOST_BYTES:
            raise OSError(errno.E2BIG, f"{os.strerror(errno.E2BIG)}: {len(request)} bytes")
        reader, writer = os.pipe()
        try:
            pid = self._asked(request, [*streams, writer])
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return Forked(words, pid, reader)

    def _asked(self, request: bytes, descriptors: list[int]) -> int:
        """The pid of a fork."""
        with self._lock:
            try:
                connection = self._connected()
                socket.send_fds(connection, [len(request).to_bytes(4, "big")], descriptors)
                connection.sendall(request)
                answer = connection.recv(4)
                if not answer:
                    raise OSError(
                        "the server of prestarted processes has ended: what it printed is on standard error"
                    )
            except BaseException:
                self.close()  # whoever asks next would get the answer to this request: another server gives it
                raise
        pid = int.from_bytes(answer, "big", signed=True)
        if pid < 0:
            raise OSError(-pid, f"no process could be forked: {os.strerror(-pid)}")
        return pid

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "lakebroker_testing.prestarted", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=ROOT,
                    env=self._environment,
                )
        return self._socket

    def close(self) -> None:
        """Forks that still run are killed."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = self._process = None


_server: _Server | None = None


@contextlib.contextmanager
def prestarted() -> Iterator[None]:
    """Within the block, processes are forks of one server, which the first of them starts."""
    global _server
    assert _server is None, "processes are prestarted already"
    _server = _Server()
    try:
        yield
    finally:
        _server.close()
        _server = None


def start(
    *words: str,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any],
    stderr: int | IO[Any],
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
    limits: Limits | None = None,
) -> Process:
    """`lakebroker WORDS` as a process. Streams are open files, `subprocess.DEVNULL`, or for `stderr` `subprocess.STDOUT`."""
    if _server is None:
        return subprocess.Popen(
            command(*words),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
            start_new_session=start_new_session,
            preexec_fn=None if limits is None else functools.partial(_limit, limits),
        )
    with contextlib.ExitStack() as opened:
        given = [_descriptor(each, opened) for each in (stdin, stdout)]
        given.append(given[1] if stderr == subprocess.STDOUT else _descriptor(stderr, opened))
        settings = {
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "new_session": start_new_session,
            "limits": [[kind, *most] for kind, most in (limits or {}).items()],
        }
        return _server.fork(list(words), given, **settings)


def run(
    *words: str,
    input: str = "",
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    timeout: float = 300.0,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`lakebroker WORDS`, to its end. Raises subprocess.TimeoutExpired; with `check` subprocess.CalledProcessError."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode())
        given.seek(0)
        process = start(*words, stdin=given, stdout=out, stderr=err, cwd=cwd, env=env, limits=limits)
        try:
            status = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        texts = []
        for each in (out, err):
            each.seek(0)
            texts.append(each.read().decode())
    done = subprocess.CompletedProcess(["lakebroker", *words], status, *texts)
    if check:
        done.check_returncode()
    return done


def _descriptor(stream: int | IO[Any], opened: contextlib.ExitStack) -> int:
    if stream == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        opened.callback(os.close, null)
        return null
    return stream if isinstance(stream, int) else stream.fileno()


def _preload() -> None:
    """In the server: imports, and compiled code as machine code."""
    import gc
    import importlib

    from broker_gateway.cli.commands import MODULES

    for name in (
        "broker_gateway.cli.main",
        *(f"broker_gateway.cli.{each}" for each in sorted({*MODULES.values()})),
    ):
        importlib.import_module(name)
    for name in _PRELOADED:
        # of an extra that is not installed: its commands name it
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    assert "duckdb" not in sys.modules
    from broker_gateway.api.grpc import receive_columns
    from broker_gateway.api.grpc.kernels import send_walk
    from store import scan
    from store.kernels import encode

    send_walk.warm()
    receive_columns.ReceiveColumns()
    encode.warm()
    scan.warm()
    gc.collect()
    gc.freeze()  # else the first collection of each fork would copy every page


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Forks until the socket is closed, also in the middle of a request: then gives None; in a fork, what that is to do. Forks that
    still run end with the server."""
    running: dict[int, int] = {}
    try:
        return _forking(connection, running)
    except ConnectionError:  # it was closed before an answer was read, or within a request
        return None
    finally:
        _end_all(running)


def _forking(connection: socket.socket, running: dict[int, int]) -> dict[str, Any] | None:
    woken, wake = os.pipe()
    for each in (woken, wake):
        os.set_blocking(each, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the whole group: what ends us is the socket
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready = select.select([connection.fileno(), woken], [], [])[0]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_ended(running)
        if connection.fileno() not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(connection, 4, _STREAMS + 1)
        if len(head) < 4:
            return None
        size = int.from_bytes(head, "big")
        assert size <= _MOST_BYTES, f"a request of {size} bytes"
        request: dict[str, Any] = json.loads(_exactly(connection, size))
        try:
            pid = os.fork()
        except OSError as error:  # this one fails; those that run, and the next, do not
            for each in descriptors:
                os.close(each)
            connection.sendall(_answer(-(error.errno or errno.EAGAIN)))
            continue
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            others = [connection.detach(), woken, wake, *running.values()]
            running.clear()  # they are the server's to end
            _become(request, descriptors, others)
            return request
        for each in descriptors[:_STREAMS]:
            os.close(each)
        running[pid] = descriptors[_STREAMS]
        connection.sendall(_answer(pid))


def _answer(pid: int) -> bytes:
    """To whoever asked for a fork; negative: why there is none, an errno."""
    return pid.to_bytes(4, "big", signed=True)


def _exactly(connection: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        more = connection.recv(size - len(read))
        if not more:
            raise ConnectionResetError("the socket was closed within a request")
        read += more
    return read


def _become(request: Mapping[str, Any], descriptors: list[int], others: list[int]) -> None:
    """In a fork: streams, folder and environment as asked, and nothing of the server's."""
    for number, each in enumerate(descriptors[:_STREAMS]):
        os.dup2(each, number)
    for each in {*descriptors, *others} - {0, 1, 2}:
        os.close(each)
    if request["new_session"]:
        os.setsid()
    _limit({kind: (soft, hard) for kind, soft, hard in request["limits"]})
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    found = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [each for each in found if each not in sys.path]
    time.tzset()


def _limit(limits: Limits) -> None:
    for kind, most in limits.items():
        resource.setrlimit(kind, most)


def _tell_ended(running: dict[int, int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            writer = running.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody asks any more
                os.write(writer, str(status).encode())
            os.close(writer)


def _end_all(running: dict[int, int]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in running:
        os.waitpid(pid, 0)


class QuickEnd:
    """Ends a fork after all `atexit` callbacks, before Python would clear each module away: that copies nearly all pages that a fork
    shares, two thirds of what a command costs.

    Made before any module registers a callback, so that it comes last. A fork that raised, or whose streams cannot be written, ends
    as Python ends it. A defect in the clearing away itself is seen by fresh processes alone: those of `make evidence`, and a few of
    the tests of commands.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._end)

    def run(self, command: Callable[[], object]) -> None:
        """Runs what ends with SystemExit."""
        try:
            command()
        except SystemExit as ended:
            code = 0 if ended.code is None else ended.code
            self._status = code if isinstance(code, int) else None  # a text has yet to be printed
            raise

    def _end(self) -> None:
        if self._status is not None:
            with contextlib.suppress(OSError, ValueError):
                for each in (sys.stdout, sys.stderr):
                    each.flush()
                os._exit(self._status & 0xFF)


def _main() -> None:
    end = QuickEnd()
    leave_pandas_out()
    _preload()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    sys.argv = ["lakebroker", *request["words"]]
    from broker_gateway.cli.main import app

    end.run(app)


if __name__ == "__main__":
    _main()
