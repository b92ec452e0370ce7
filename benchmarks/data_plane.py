"""Sending and receiving beside the real RocketMQ proxy, alternating in one run; one line of JSON a measurement.

`python -m benchmarks.data_plane [--cases send,receive,…]`. The figure to compare is the server's CPU seconds per
1,000 messages. Every server is warmed with traffic, then passes alternate, the first of each case is dropped and
the median of the others counts. While one is measured the others are stopped (SIGSTOP), so that each has
the machine to itself. Ends with a table of the ratios to the proxy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import load_generator, revision
from lakebroker_testing.gateway import PATIENT, ROOT, Gateway, command
from lakebroker_testing.real_rocketmq import MeasuredRocketMQ

PROXY = "rocketmq proxy"
ECHO = "go echo"
SEGMENT = str(1 << 30)
_DRAINED_A_SECOND = 80_000
"""More than any server takes from a backlog."""
_FRESH = 0.01
"""Of what is received beside a backlog: more of it was sent meanwhile only where the backlog ran out."""
TOPICS = ("bench", "idle", "warm", "drained", "through-200", "through-2000")
DELAYED, PAID = "delayed", "paid"
_AHEAD_S = 3.0
"""From a send to its delivery time."""
ORDERED, ORDERED_GROUP = ("ordered", "ordered-through"), "ordered-group"
"""Topics of FIFO messages, and a consumer group that takes them in order."""


@dataclass(frozen=True)
class Case:
    """A measurement: the generator's mode and its flags."""

    name: str
    mode: str
    flags: dict[str, Any] = field(default_factory=dict)
    echoed: bool = False
    """Whether the echo server can take part."""
    backlog: int = 0
    """Messages that are there before a pass begins, for receivers to drain meanwhile."""


@dataclass(frozen=True)
class Server:
    name: str
    address: str
    pid: int


def cases(seconds: float) -> list[Case]:
    """Every case; `seconds` is how long a pass of one measures."""
    timed = {"seconds": seconds}
    found = [
        Case(f"send-{size}-{senders}", "send", {"size": size, "senders": senders, **timed}, echoed=True)
        for size in (1024, 100)
        for senders in (64, 16, 1)
    ]
    found.append(Case("send-1024-64-tls", "send", {"tls": True, **timed}))
    found.append(Case("send-1024-batches-of-32", "send", {"per_call": 32, "senders": 16, **timed}))
    found.append(Case("receive-1024", "receive", {"count": int(10_000 * seconds)}))
    found.extend(
        Case(f"through-{rate}-a-second", "through", {"rate": rate, "topic": f"through-{rate}", **timed})
        for rate in (200, 2000)
    )
    draining = {"senders": 16, "receivers": 16, "topic": "drained", "warm": 1.0, **timed}
    backlog = int(_DRAINED_A_SECOND * (seconds + 1))
    found.append(Case("drain-and-send", "through", draining, backlog=backlog))
    found.append(Case("drain-and-send-2000-a-second", "through", {"rate": 2000, **draining}, backlog=backlog))
    ordered = {"message_groups": 1000, "size": 100, **timed}
    found.append(Case("send-ordered", "send", {"topic": ORDERED[0], **ordered}))
    found.append(
        Case(
            "through-ordered-2000-a-second",
            "through",
            {"rate": 2000, "topic": ORDERED[1], "group": ORDERED_GROUP, **ordered},
        )
    )
    ahead = {"delay": _AHEAD_S, "warm": 2 * _AHEAD_S, "topic": DELAYED, **timed}
    found.append(Case("delayed-2000-a-second", "through", {"rate": 2000, **ahead}))
    found.append(
        Case(
            "transactions-1000-a-second",
            "through",
            {"rate": 1000, "transaction": True, "topic": PAID, **timed},
        )
    )
    found.append(
        Case("idle-5000-polls", "idle", {"polls": 5000, "topic": "idle", "seconds": min(seconds, 10.0)})
    )
    found.append(Case("memory-200000", "send", {"count": 200_000, "per_call": 8}))
    return found


def measure(case: Case, server: Server) -> dict[str, Any]:
    """One pass of a case on a server; a receive first sends what it will take."""
    flags = {**case.flags}
    if case.backlog:
        topic = case.flags["topic"]
        load_generator.run(
            "send",
            server.address,
            server.pid,
            count=case.backlog,
            topic=topic,
            per_call=32,
            senders=16,
            warm=0,
        )
    if case.mode == "receive":
        load_generator.run("send", server.address, server.pid, count=case.flags["count"] + 64, warm=0)
    result = load_generator.run(case.mode, server.address, server.pid, **flags)
    if not case.backlog:
        return result
    if result["received_fresh"] > _FRESH * result["received"]:
        sys.stderr.write(f"{case.name}, {server.name}: the backlog ran out, so that its rate is no rate\n")
    # a journey is as long as its message lay in the backlog
    return {name: value for name, value in result.items() if not name.startswith("journey_")}


@contextlib.contextmanager
def alone(server: Server, servers: Sequence[Server]) -> Iterator[None]:
    """The other servers do not run meanwhile."""
    others = [each.pid for each in servers if each is not server]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def warm_up(server: Server, seconds: float) -> None:
    """Traffic of both kinds, so that a JVM has compiled what it will run."""
    for _ in range(2):
        load_generator.run("send", server.address, server.pid, seconds=seconds / 4, warm=0)
        load_generator.run(
            "through", server.address, server.pid, seconds=seconds / 4, senders=8, warm=0, topic="warm"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a pass of one case")
    parser.add_argument("--passes", type=int, default=3, help="counted passes, after one that is dropped")
    parser.add_argument("--warm-seconds", type=float, default=20.0, help="traffic before the first case")
    parser.add_argument(
        "--cases", default="", help="only cases whose name holds one of these words, with commas"
    )
    parser.add_argument("--transports", default="http2,grpcio", help="of the gateways to measure")
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument(
        "--patient", action="store_true", help="no server refuses a send because the machine is busy"
    )
    chosen = parser.parse_args()
    patience = PATIENT if chosen.patient else {}
    words = [word for word in chosen.cases.split(",") if word]
    asked = [case for case in cases(chosen.seconds) if not words or any(word in case.name for word in words)]
    console = Console(stderr=True, width=140)
    load_generator.program()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakebroker-bench-")))
        servers = []
        for transport in chosen.transports.split(","):
            options = {"flushDiskType": chosen.flush, "mappedFileSizeCommitLog": SEGMENT}
            if transport == "http2":
                options["tlsTestModeEnable"] = "true"
            gateway = stack.enter_context(
                Gateway(folder / transport, transport=transport, patient=chosen.patient, **options)
            )
            assert gateway.process is not None
            made = command("group", "create", ORDERED_GROUP, "--fifo", "--gateway", gateway.address)
            subprocess.run(made, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            servers.append(Server(f"lakebroker {transport}", gateway.address, gateway.process.pid))
        peer = MeasuredRocketMQ(
            folder / "peer",
            {
                **dict.fromkeys(TOPICS, (8, "NORMAL")),
                **dict.fromkeys(ORDERED, (8, "FIFO")),
                DELAYED: (8, "DELAY"),
                PAID: (8, "TRANSACTION"),
            },
            ["bench-group", ORDERED_GROUP],
            flushDiskType=chosen.flush,
            **patience,
            popPollingSize="100000",  # its default of 1,024 polls of a queue refuses the idle case
        )
        stack.enter_context(peer)
        peer.mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", ORDERED_GROUP, "-o", "true")
        servers.append(Server(PROXY, peer.address, peer.pid))
        limit = stack.enter_context(load_generator.Echo())
        echo = Server(ECHO, limit.address, limit.pid)
        for server in servers:
            with console.status(f"warming {server.name}"):
                warm_up(server, chosen.warm_seconds)
        results: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for case in asked:
            for number in range(1 + chosen.passes):
                dropped = number == 0
                for server in [*servers, echo] if case.echoed else servers:
                    if case.flags.get("tls") and "grpcio" in server.name:
                        continue  # that transport takes plaintext only
                    with alone(server, [*servers, echo]):
                        result = measure(case, server)
                    line = {
                        "commit": revision.commit(),
                        "case": case.name,
                        "server": server.name,
                        "pass": number,
                        "dropped": dropped,
                    }
                    sys.stdout.write(json.dumps({**line, **result}) + "\n")
                    sys.stdout.flush()
                    if not dropped:
                        results[case.name][server.name].append(result)
    console.print(_table(results))


def _table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> Table:
    table = Table(title="Medians; ratios to the proxy in brackets")
    for name in (
        "case",
        "server",
        "CPU-s per 1,000",
        "cores",
        "messages/s",
        "received/s",
        "p50 ms",
        "p99 ms",
        "RssAnon MB",
    ):
        table.add_column(name, justify="left" if name in ("case", "server") else "right")
    for case, servers in results.items():
        for server, passes in servers.items():
            table.add_row(case, server, *(_cell(name, passes, servers.get(PROXY, [])) for name in _FIGURES))
        table.add_section()
    return table


_FIGURES = (
    ("server_cpu_s_per_1000",),
    ("server_cores",),
    ("per_s",),
    ("received_per_s",),
    ("journey_p50_ms", "p50_ms", "send_p50_ms"),
    ("journey_p99_ms", "p99_ms", "send_p99_ms"),
    ("server_rss_anon_mb",),
)


def _cell(names: tuple[str, ...], passes: list[dict[str, Any]], peer: list[dict[str, Any]]) -> str:
    value, other = _median(names, passes), _median(names, peer)
    if value is None:
        return "-"
    return f"{value:.4g} [{value / other:.2f}]" if other else f"{value:.4g}"


def _median(names: tuple[str, ...], passes: list[dict[str, Any]]) -> float | None:
    values = [result[name] for result in passes for name in names[:1] if name in result] or [
        result[name] for result in passes for name in names[1:] if name in result
    ]
    return statistics.median(values) if values else None


if __name__ == "__main__":
    main()
