"""What all tests share: the Spark session and the prestarted `lakebroker` of each worker, which the first test that asks for one
starts; the environment of JVMs; and the choice between `make test` and `make evidence`, where each process is a fresh Python."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import structlog

from lakebroker_testing.prestarted import prestarted
from structured_streaming import reput_query
from structured_streaming.errors import JvmEndedError
from structured_streaming.interruptible import has_ended, jvm_of
from structured_streaming.jvm_output import output_end
from structured_streaming.sql import delta_session
from tests.suite.compiling import import_from_our_share_on
from tests.suite.evidence import EVIDENCE
from tests.suite.scheduling import ALONE, BySharing, alone, in_order, yield_to_dear_files
from tests.suite.scratch import in_memory
from tests.support.spark.jvm import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


def pytest_configure(config: pytest.Config) -> None:
    # a shell has the jobs of a script's background ignore ctrl-C, which every process of a test would inherit
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # what is logged before anything says how, as most unit tests do it: rich's traces take a third of a second each
    structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    shared = ExitStack()
    # JVMs have temporary files in memory, too, and prestarted processes start JVMs
    for each in [environment()] if EVIDENCE else [in_memory(), environment(), prestarted()]:
        shared.enter_context(each)
    config.add_cleanup(shared.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    import_from_our_share_on(session.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [] if EVIDENCE else [item for item in items if item.get_closest_marker("evidence")]
    config.hook.pytest_deselected(items=long)
    for item in long:
        items.remove(item)
    in_order(items)


def pytest_collection_finish() -> None:
    """All of it stays until the end: each full collection of garbage would go through it for half a second, and so would a
    notebook's shell before it begins."""
    gc.collect()
    gc.freeze()
    # as a gateway has it: a look every 700 objects costs here what it costs there
    gc.set_threshold(10_000, 10, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    yield_to_dear_files(item)


def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput[ALONE] = alone()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySharing:
    return BySharing(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    jvm = jvm_of(session)
    yield session
    if has_ended(jvm):
        raise JvmEndedError(jvm.returncode, output_end())
    session.stop()


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest) -> None:
    """On a busy host the 10 s that Spark gives a Python worker to start may run out several times in a row."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("monkeypatch").setattr(reput_query, "RETRIES_ONCE", 100)
