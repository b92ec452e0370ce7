"""The functions that a call passes, in order: a send, a receive, a batch of the reput, each in one process.

Says how straight the way is: how often a file is entered from another one. Examples:

    python -m benchmarks.call_paths send
    python -m benchmarks.call_paths reput --summary
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.logs import LogWriter
from lakebroker_testing.messages import message, send_request

_ROOT = f"{Path(__file__).parents[1]}/"
_PACKAGES = ("broker_gateway/", "store/", "structured_streaming/")
_PARTS = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""Of the function that they stand in."""

Step = tuple[str, str]
"""File and function."""


def traced(work: Callable[[], object]) -> tuple[list[Step], int]:
    """The functions of the product that run, each run of the same one once, and how often a file is entered from another."""
    steps: list[Step] = []
    files: list[str] = []
    entries = 0

    def follow(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entries
        if event == "call":
            path = frame.f_code.co_filename.removeprefix(_ROOT)
            if not path.startswith(_PACKAGES):
                files.append(files[-1] if files else "")
                return
            entries += bool(files) and files[-1] != path
            files.append(path)
            step = (path.removeprefix("broker_gateway/"), frame.f_code.co_qualname)
            if frame.f_code.co_name not in _PARTS and steps[-1:] != [step]:
                steps.append(step)
        elif event == "return" and files:
            files.pop()

    sys.setprofile(follow)
    try:
        work()
    finally:
        sys.setprofile(None)
    return steps, entries


def call(what: str) -> tuple[list[Step], int]:
    """One send of a usual message, or one receive of 32, by the compiled path, with everything warm."""
    with InProcessBroker() as broker:
        assert broker.broker.load_compiled()
        broker.create_topic("orders")
        broker.create_group("billing")
        request = send_request(message("orders", bytes(1024), {"a": "b"}, tag="t")).SerializeToString()

        def send() -> None:
            with broker.one_tick():
                broker.begin("SendMessage", request)

        def receive() -> None:
            broker.receive("orders", "billing")

        for _ in range(64):
            send()
        receive()
        return traced(send if what == "send" else receive)


def batch() -> tuple[list[Step], int]:
    """A range of a log staged as on an executor, and committed as on the driver."""
    from store.log_source import FolderLog
    from structured_streaming.commit.delta_commit import DeltaCommitSink
    from structured_streaming.lake import create_tables
    from structured_streaming.source.log_range import LogRange
    from structured_streaming.staging.stage import stage

    with tempfile.TemporaryDirectory() as folder:
        with LogWriter(Path(folder, "store")) as writer:
            writer.messages(1000)
        lake = str(Path(folder, "lake"))
        create_tables(lake)
        sink = DeltaCommitSink(lake)

        def work() -> None:
            log = FolderLog(Path(folder, "store"))
            state = log.describe()
            part = LogRange(
                "store",
                state.broker,
                state.log_id,
                state.start,
                state.end,
                state.end,
                None,
                state.segment_size,
            )
            (manifest,) = stage(lake, part, log.read(state.log_id, state.start, state.end))
            sink.commit(manifest.to_pylist())

        return traced(work)


def main() -> None:
    """Prints the functions, and how many there are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["send", "receive", "reput"])
    parser.add_argument("--summary", action="store_true", help="only the counts")
    asked = parser.parse_args()
    steps, entries = batch() if asked.what == "reput" else call(asked.what)
    if not asked.summary:
        for path, name in steps:
            print(f"{path}: {name}")
    files = {path for path, _ in steps}
    print(
        f"{asked.what}: {len(set(steps))} functions in {len(files)} files, which are entered {entries} times from others"
    )


if __name__ == "__main__":
    main()
