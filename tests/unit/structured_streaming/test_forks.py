"""Spark's JVM is started by a fork, whatever gRPC does meanwhile in the same process."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.suite.evidence import rounds
from tests.support.waiting import LIMIT_S

FORKS = """
import json, signal, subprocess, sys, threading
from concurrent import futures

import structured_streaming
import grpc


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(Echo(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
over = threading.Event()


def calls():
    while not over.is_set():
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/echo/Echo")
            for _ in range(20):
                call(b"x", timeout=300)


callers = [threading.Thread(target=calls) for _ in range(3)]
for each in callers:
    each.start()
ends = [
    subprocess.run(["true"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)).returncode
    for _ in range(int(sys.argv[1]))
]
over.set()
for each in callers:
    each.join()
server.stop(0).wait()
print(json.dumps(sorted(set(ends))))
"""


def test_a_process_that_is_forked_beside_calls_begins() -> None:
    """As pyspark starts it: with something to do in the child, so that handlers of a fork run. One in thirty was ended by gRPC's."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(rounds(100, 200))],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0]
