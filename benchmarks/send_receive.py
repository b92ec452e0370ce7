"""Sends, then receives and acks, against a gateway process; prints one line of JSON for each.

`python -m benchmarks.send_receive [--messages 50000] [--senders 64] [--bytes 1024]`. The figure to compare is
the server's CPU seconds per 1,000 messages; the load comes from another process over four connections, with
the metadata that official clients send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import grpc

from demo.processes import Gateway
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

SERVICE = "/apache.rocketmq.v2.MessagingService/"


def server_cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_anon_mb(pid: int) -> float:
    """Anonymous resident memory of a process, MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no RssAnon")


def metadata() -> tuple[tuple[str, str], ...]:
    now = time.strftime("%Y%m%dT%H%M%SZ")
    return (
        ("x-mq-client-id", "bench"),
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.0"),
        ("x-mq-request-id", uuid.uuid4().hex),
        ("x-mq-date-time", now),
    )


def percentile(values: list[float], part: float) -> float:
    return round(sorted(values)[int(part * (len(values) - 1))] * 1000, 2) if values else 0.0


async def send(address: str, count: int, senders: int, size: int) -> dict[str, Any]:
    """Sends `count` messages, one a call; rates and latencies (ms)."""
    channels = [grpc.aio.insecure_channel(address, options=[("bench", n)]) for n in range(4)]
    calls = [
        channel.unary_unary(
            SERVICE + "SendMessage",
            request_serializer=rpc.SendMessageRequest.SerializeToString,
            response_deserializer=rpc.SendMessageResponse.FromString,
        )
        for channel in channels
    ]
    body = os.urandom(size)
    left = count
    latencies: list[float] = []

    async def sender(number: int) -> None:
        nonlocal left
        call = calls[number % len(calls)]
        while left > 0:
            left -= 1
            message = pb.Message(
                topic=pb.Resource(name="bench"),
                body=body,
                system_properties=pb.SystemProperties(
                    message_id=uuid.uuid4().hex.upper(), message_type=pb.NORMAL, body_encoding=pb.IDENTITY
                ),
            )
            began = time.perf_counter()
            answer = await call(rpc.SendMessageRequest(messages=[message]), metadata=metadata(), timeout=30)
            latencies.append(time.perf_counter() - began)
            if answer.status.code != pb.OK:
                raise RuntimeError(str(answer.status))

    began = time.perf_counter()
    await asyncio.gather(*(sender(number) for number in range(senders)))
    seconds = time.perf_counter() - began
    return {
        "per_s": round(count / seconds),
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
    }


async def receive(address: str, count: int, receivers: int) -> dict[str, Any]:
    """Receives and acks until `count` messages are settled."""
    channel = grpc.aio.insecure_channel(address)
    take = channel.unary_stream(
        SERVICE + "ReceiveMessage",
        request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
        response_deserializer=rpc.ReceiveMessageResponse.FromString,
    )
    ack = channel.unary_unary(
        SERVICE + "AckMessage",
        request_serializer=rpc.AckMessageRequest.SerializeToString,
        response_deserializer=rpc.AckMessageResponse.FromString,
    )
    settled = 0
    topic, group = pb.Resource(name="bench"), pb.Resource(name="bench-group")

    async def receiver() -> None:
        nonlocal settled
        while settled < count:
            request = rpc.ReceiveMessageRequest(
                group=group,
                message_queue=pb.MessageQueue(topic=topic, id=-1),
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                batch_size=32,
            )
            request.invisible_duration.FromSeconds(60)
            request.long_polling_timeout.FromSeconds(5)
            entries = []
            async for answer in take(request, metadata=metadata(), timeout=30):
                if answer.WhichOneof("content") == "message":
                    system = answer.message.system_properties
                    entries.append(
                        rpc.AckMessageEntry(
                            message_id=system.message_id, receipt_handle=system.receipt_handle
                        )
                    )
            if entries:
                asked = rpc.AckMessageRequest(group=group, topic=topic, entries=entries)
                acked = await ack(asked, metadata=metadata(), timeout=30)
                settled += sum(entry.status.code == pb.OK for entry in acked.entries)

    began = time.perf_counter()
    await asyncio.gather(*(receiver() for _ in range(receivers)))
    return {"per_s": round(settled / (time.perf_counter() - began)), "settled": settled}


def load(kind: str, address: str, count: int, senders: int, size: int, out: Any) -> None:
    """Runs in a process of its own."""
    if kind == "send":
        out.put(asyncio.run(send(address, count, senders, size)))
    else:
        out.put(asyncio.run(receive(address, count, 8)))


def measured(kind: str, gateway: Gateway, count: int, senders: int, size: int) -> dict[str, Any]:
    """Runs the load in another process and adds the server's CPU and memory."""
    assert gateway.process is not None
    pid = gateway.process.pid
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    before = server_cpu_s(pid)
    worker = context.Process(target=load, args=(kind, gateway.address, count, senders, size, out))
    worker.start()
    result: dict[str, Any] = out.get(timeout=600)
    worker.join()
    cpu = server_cpu_s(pid) - before
    return {
        "benchmark": kind,
        "messages": count,
        "bytes": size,
        "senders": senders,
        **result,
        "server_cpu_s_per_1000": round(1000 * cpu / count, 4),
        "server_rss_anon_mb": round(rss_anon_mb(pid), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--senders", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=1024)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as folder,
        Gateway(Path(folder), mappedFileSizeCommitLog=str(1 << 28)) as gateway,
    ):
        measured("send", gateway, 2000, chosen.senders, chosen.bytes)  # warm-up, dropped
        for kind in ("send", "receive"):
            print(
                json.dumps(measured(kind, gateway, chosen.messages, chosen.senders, chosen.bytes)), flush=True
            )


if __name__ == "__main__":
    main()
