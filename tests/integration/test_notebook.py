"""Every notebook runs from its first cell to its last, in a Spark session that was there before and lives on, over a lake in a folder
and in a catalog; what its plots show is what the embedded engine answers. One makes a session of its own: in `make evidence` in a kernel."""

from __future__ import annotations

import html
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import nbformat
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway
from structured_streaming import sql
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.notebooks import session as notebook_session
from structured_streaming.notebooks.parameters import PARAMETERS
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS
from tests.suite.evidence import LONG
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.notebook import HOSTILE, HOSTILE_TOPIC, HOURS, SPOILED, make_lake
from tests.support.spark.notebook_runs import Notebooks, Ran, notebooks, run_in_kernel

pytestmark = pytest.mark.timeout(1800)
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
SCHEMA = "lake_of_notebooks"
IN_SCHEMA = {name: TABLES[name] for name in ("consume_queue", "messages", "reput_progress", "upkeep")}
"""What the one notebook over a catalog reads; that all tables of one are described: the unit tests of `sizes`."""
IN_KERNEL = "message_by_key"
"""What runs over the empty lake without a session that was there before, instead of beside one."""
NEW_KEY = "it's-\\'new\\\\-$1"
"""Of a message that is in a log and not in the lake yet; what SQL and plots could take for something else than text."""
GIVEN = {"hours": str(HOURS + 12)}
MINUTES = 4
"""That a point of a plot over so many hours stands for."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lake(tmp_path_factory.mktemp("notebooks") / "lake")


class Widgets:
    """As Databricks has them, of which nobody has touched one."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def text(self, name: str, default: str, _label: str) -> None:
        self.made[name] = default

    def get(self, name: str) -> str:
        return self.made[name]


@dataclass
class Session:
    """One that was there before, with a setting and a view of its own."""

    spark: SparkSession
    widgets: Widgets


@pytest.fixture(scope="module")
def session(spark: SparkSession, lake: Path) -> Iterator[Session]:
    own = spark.newSession()
    own.sql(f"CREATE SCHEMA {SCHEMA}")
    for name in IN_SCHEMA:
        own.sql(f"CREATE TABLE {SCHEMA}.{name} USING delta LOCATION '{lake}/{name}'")
    own.conf.set("spark.sql.session.timeZone", "America/New_York")
    own.sql("SELECT 'mine' AS whose").createOrReplaceTempView("messages")
    with (
        patch("structured_streaming.catalog.lake_tables._check_kept"),  # this catalog ends with the JVM
        patch("structured_streaming.catalog.lake_tables.TABLES", IN_SCHEMA),
        patch("structured_streaming.notebooks.sizes.TABLES", IN_SCHEMA),
    ):
        yield Session(own, Widgets())
    own.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake without messages."""
    return str(empty_lake(str(tmp_path_factory.mktemp("notebooks") / "empty")).path)


class Runs:
    """What each notebook left; it runs when a test first asks for it."""

    def __init__(
        self, here: Notebooks, session: Session, planned: Mapping[str, tuple[str, Mapping[str, str]]]
    ) -> None:
        self.here, self._planned = here, planned
        self._there = {"spark": session.spark, "dbutils": SimpleNamespace(widgets=session.widgets)}
        self._ran: dict[str, Ran] = {}

    def __getitem__(self, name: str) -> Ran:
        if name not in self._ran:
            notebook, given = self._planned[name]
            left = self.here.run(notebook, given, **self._there)
            assert "in the Spark session that already exists" in left.printed
            self._ran[name] = left
        return self._ran[name]


@pytest.fixture(scope="module")
def ran(session: Session, lake: Path, empty: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Of each notebook, of capacity over the lake's tables in a catalog; of the empty lake under `empty NAME`, of one message that only
    a log has under `new`."""
    planned = {name: (name, GIVEN | {"lake": str(lake)}) for name in NAMES}
    planned["capacity_and_cost"] = ("capacity_and_cost", {"lake": f"spark_catalog.{SCHEMA}"})
    planned |= {f"empty {name}": (name, {"lake": empty}) for name in NAMES if name != IN_KERNEL}
    with (
        Gateway(tmp_path_factory.mktemp("gateway"), flushDiskType="SYNC_FLUSH") as gateway,
        notebooks() as here,
    ):
        with closing(Client(gateway.address)) as client:
            client.send("orders", b"new", message_id="NEW", keys=[NEW_KEY])
        asked = {"lake": str(lake), "brokers": gateway.address, "key": NEW_KEY}
        yield Runs(here, session, planned | {"new": ("message_by_key", asked)})


@pytest.fixture(scope="module")
def engine(lake: Path) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.open(str(lake)) as opened:
        yield opened


def pairs(engine: EmbeddedEngine, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in engine.query(statement).read_all().to_pylist()]


def lag_of_minutes(
    engine: EmbeddedEngine,
) -> tuple[dict[tuple[str, datetime], float], dict[tuple[str, datetime], float]]:
    """Lag of each group at each minute in which a queue of it moved: of all its queues, and of those that moved alone."""
    rows = pairs(
        engine,
        """SELECT consumer_group, minute, concat_ws('/', topic, broker, queue_id), CAST(coalesce(lag, 0) AS DOUBLE)
        FROM consumer_lag_by_minute WHERE topic NOT LIKE '\\%DLQ%' ESCAPE '\\' ORDER BY minute""",
    )
    last: dict[str, dict[str, float]] = defaultdict(dict)
    every: dict[tuple[str, datetime], float] = {}
    moved: dict[tuple[str, datetime], float] = defaultdict(float)
    for group, minute, queue, lag in rows:
        last[group][queue] = lag
        every[group, minute] = sum(last[group].values())
        moved[group, minute] += lag
    return every, dict(moved)


def lines(figure: Any) -> dict[str, dict[datetime, float]]:
    """Points of each line by its name."""
    return {
        name: {
            datetime.fromisoformat(x[:26]).replace(tzinfo=UTC): y for x, y in zip(times, values, strict=True)
        }
        for axis in figure["axes"]
        for name, (times, values) in axis["lines"].items()
    }


def bars(figure: Any) -> dict[str, float]:
    (axis,) = figure["axes"]
    (values,) = axis["bars"].values()
    return dict(zip(axis["y"], values, strict=True))


def test_the_repository_has_each_notebook_without_outputs_and_the_documentation_tells_of_it() -> None:
    assert NAMES == ["capacity_and_cost", "dead_letters", "lag_and_throughput", "message_by_key", "tour"]
    told = (ROOT / "docs" / "notebooks.md").read_text()
    for name in NAMES:
        assert f"`{name}.ipynb`" in told
        cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
        code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        assert code[-1].splitlines()[-1] == "lake.close()", "a session that it made is stopped"
        for cell in cells:
            assert not cell.get("outputs"), name
            assert cell.get("execution_count") is None, name


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_shown_once_and_has_a_title(ran: Runs, name: str) -> None:
    left = ran[name]
    assert left.drawn
    assert left.pictures == len(left.drawn)
    assert all(figure["title"] for figure in left.drawn.values())


SAID_OF_NOTHING = {
    "capacity_and_cost": "No messages in the lake: nothing to grow.",
    "dead_letters": "No dead letters in these hours",
    "lag_and_throughput": "No messages of these topics in the lake",
    "message_by_key": "No message in the lake has a key yet.",
    "tour": "No messages in the lake yet",
}


@pytest.mark.parametrize("name", [name for name in NAMES if name != IN_KERNEL])
def test_an_empty_lake_has_sentences_in_place_of_plots(ran: Runs, name: str) -> None:
    left = ran[f"empty {name}"]
    assert SAID_OF_NOTHING[name] in left.printed
    assert not left.drawn


def test_throughput_and_lag_are_what_the_views_answer(ran: Runs, engine: EmbeddedEngine) -> None:
    drawn = ran["lag_and_throughput"].drawn
    expected = pairs(
        engine,
        f"""SELECT topic, time_bucket(INTERVAL '{MINUTES} minutes', minute, TIMESTAMPTZ '1970-01-01 00:00:00Z') AS at,
        sum(messages) / {MINUTES} FROM topic_stats WHERE topic NOT LIKE '\\%DLQ%' ESCAPE '\\' GROUP BY ALL""",
    )
    shown = {
        (topic, at, value)
        for topic, points in lines(drawn["throughput_figure"]).items()
        for at, value in points.items()
        if value
    }
    assert shown == {(topic, at, float(value)) for topic, at, value in expected}
    assert {topic for topic, _, _ in shown} == {"orders", "shipments", HOSTILE_TOPIC}
    assert drawn["throughput_figure"]["title"].startswith("orders has the most messages: up to 3 a minute")

    lags = lines(drawn["lag_figure"])
    now = dict(
        pairs(
            engine,
            "SELECT consumer_group, CAST(sum(lag) AS DOUBLE) FROM consumer_lag WHERE topic NOT LIKE '\\%%' ESCAPE '\\' GROUP BY ALL",
        )
    )
    assert {group: list(points.values())[-1] for group, points in lags.items()} == now
    by_minute, moved = lag_of_minutes(engine)
    assert len(by_minute) > 400
    assert by_minute != moved, "there is a minute in which not every queue moved"
    for (group, at), value in by_minute.items():
        assert lags[group][at] == value, (group, at)
    assert (
        drawn["lag_figure"]["title"]
        == f"billing is the furthest behind: {now['billing']:.0f} messages wait for it"
    )

    (behind,) = pairs(engine, "SELECT CAST(sum(behind_bytes) AS DOUBLE) FROM dispatch_lag")
    freshness = lines(drawn["freshness_figure"])
    assert freshness.keys() == {"broker-a", "broker-b"}
    assert sum(list(points.values())[-1] for points in freshness.values()) == behind[0]
    printed = ran["lag_and_throughput"].printed
    assert "falls behind: is it running?" in printed
    assert "gives messages up" in printed


def test_a_message_s_life_is_its_trace_step_by_step(ran: Runs, engine: EmbeddedEngine) -> None:
    figure = ran["message_by_key"].drawn["life_figure"]
    axis = figure["axes"][0]
    steps = pairs(
        engine,
        "SELECT event, attempt, consumer_group, topic FROM message_trace WHERE message_id = 'AGAIN1' ORDER BY event_timestamp, step",
    )
    assert [label.partition("  ·  ")[0] for label in axis["y"]] == [
        event if attempt is None else f"{event}, attempt {attempt}" for event, attempt, _, _ in steps
    ]
    assert len(axis["points"]) == len(steps) == 7
    assert figure["title"].startswith("AGAIN1, +2.001 s from first to last step (audit: dead_lettered)")


def test_a_message_that_only_a_broker_s_log_has_is_found(ran: Runs) -> None:
    left = ran["new"]
    (axis, *_) = left.drawn["life_figure"]["axes"]
    assert axis["y"] == ["stored  ·  orders"]
    assert (
        left.drawn["life_figure"]["title"] == "NEW, +0.000 s from first to last step (nobody has received it)"
    )
    assert html.escape(NEW_KEY, quote=False) in left.printed


def test_dead_letters_are_counted_and_the_commands_name_those_that_wait(
    ran: Runs, engine: EmbeddedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ran["dead_letters"]
    by_reason = pairs(
        engine,
        """SELECT consumer_group, reason, CAST(count(*) AS DOUBLE) AS letters FROM dead_letters GROUP BY ALL
        ORDER BY letters DESC, consumer_group, reason""",
    )
    assert list(bars(left.drawn["reasons_figure"]).values()) == [count for _, _, count in by_reason]
    dead = pairs(engine, "SELECT consumer_group, CAST(count(*) AS DOUBLE) FROM dead_letters GROUP BY ALL")
    deaths = lines(left.drawn["deaths_figure"])
    assert {group: sum(points.values()) for group, points in deaths.items()} == dict(dead)
    waiting = pairs(
        engine,
        """SELECT message_id FROM dead_letters WHERE message_id NOT LIKE 'AGAIN%' AND message_id NOT IN
        (SELECT properties['REPLAY_OF'] FROM messages WHERE properties['REPLAY_OF'] IS NOT NULL)""",
    )
    assert bars(left.drawn["outcomes_figure"]) == {
        "waits": len(waiting), "came back": 1, "settled": 1, "under way": 1,
    }  # fmt: skip
    commands = [line for line in left.printed.splitlines() if line.startswith("lakebroker dlq replay ")]
    ids, spans = commands[:2], commands[2:]
    died = datetime(2023, 11, 14, 22, 14, 2, tzinfo=UTC) + SPOILED * timedelta(minutes=13)
    expected = (
        f"lakebroker dlq replay shipping --topic shipments --gateway 'GATEWAY OF broker-b' --since {died:%Y-%m-%dT%H:%M:%SZ} "
        f"--until {died + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ} "
    )
    assert spans == [f"{expected}--dry-run", f"{expected}--outcomes replay-2.jsonl"]
    of_audit = "lakebroker dlq replay audit --topic orders --gateway 'GATEWAY OF broker-a' --id "
    assert "# 'broker-b' is not among `brokers`" in left.printed
    named = ids[0].removeprefix(of_audit).removesuffix(" --dry-run").split(" --id ")
    assert {*named, f"SHIP{SPOILED:05}"} == {name for (name,) in waiting}, (
        "one of audit's was sent again meanwhile"
    )
    assert ids[1] == ids[0].removesuffix("--dry-run") + "--outcomes replay-1.jsonl"
    monkeypatch.chdir(tmp_path)  # for the files of outcomes
    for line in commands:
        words = shlex.split(re.sub("'GATEWAY OF broker-[ab]'", "127.0.0.1:9", line))
        asked = CliRunner().invoke(app, words[1:])
        assert asked.exit_code == 1, "the options are not those of the command"
        assert "127.0.0.1:9" in asked.output
    assert HOSTILE not in left.printed
    assert "&lt;script&gt;" in left.printed, "what a message says is text on a page"


def test_capacity_is_what_the_tables_hold_and_the_cost_follows(
    ran: Runs, engine: EmbeddedEngine, lake: Path
) -> None:
    drawn = ran["capacity_and_cost"].drawn
    by_day = pairs(
        engine,
        """SELECT topic, date_trunc('DAY', store_timestamp) AS day, sum(size) FROM consume_queue
        GROUP BY ALL ORDER BY topic, day""",
    )
    (axis,) = drawn["growth_figure"]["axes"]
    shown = {name.replace("\\$", "$"): sum(values) for name, values in axis["bars"].items()}
    assert shown == {
        topic: pytest.approx(sum(float(size) for other, _, size in by_day if other == topic))
        for topic in {topic for topic, _, _ in by_day}
    }
    files = {name: [path.stat().st_size for path in (lake / name).glob("*.parquet")] for name in IN_SCHEMA}
    assert bars(drawn["tables_figure"]) == {
        f"{name} ({len(sizes)} files)": sum(sizes) for name, sizes in files.items() if sizes
    }
    held = sum(map(sum, files.values()))
    ((covered,),) = pairs(engine, "SELECT sum(end_offset) FROM reput_progress")
    forecast = lines(drawn["forecast_figure"])
    brokers, grown = (list(points.values()) for points in forecast.values())
    assert len(grown) == 90
    whole = [float(size) for _, day, size in by_day if day.day < 16]
    rate = sum(whole) / 2 * float(covered) / sum(float(size) for _, _, size in by_day)
    assert brokers[0] == pytest.approx(rate * 3)
    assert grown[-1] == pytest.approx(held + held / float(covered) * rate * 90)
    assert list(bars(drawn["cost_figure"]).values()) == [
        pytest.approx(brokers[-1] / 1e9 * 0.08), pytest.approx(grown[-1] / 1e9 * 0.023),
    ]  # fmt: skip


def test_the_tour_shows_topics_events_and_reasons(ran: Runs, engine: EmbeddedEngine) -> None:
    left = ran["tour"]
    topics = pairs(engine, "SELECT topic, CAST(sum(messages) AS DOUBLE) FROM topic_stats GROUP BY ALL")
    assert {
        name.replace("\\$", "$"): count for name, count in bars(left.drawn["topics_figure"]).items()
    } == dict(topics)
    events = pairs(engine, "SELECT event, CAST(count(*) AS DOUBLE) FROM message_trace GROUP BY ALL")
    assert bars(left.drawn["events_figure"]) == dict(events)
    assert "no such account" in left.printed
    assert "again-1" in left.printed
    assert all(view.name in left.printed for view in VIEWS)


def test_a_session_that_was_there_lives_on_with_its_settings_and_views(ran: Runs, session: Session) -> None:
    assert all(ran[name].printed for name in NAMES)
    there = session.spark
    assert there.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert there.sql("SELECT whose FROM messages").toArrow().to_pylist() == [{"whose": "mine"}]
    assert [each.tableName for each in there.sql("SHOW TABLES").collect()] == ["messages"]
    assert session.widgets.made.keys() == set(PARAMETERS), "each is a widget where there are widgets"


def test_without_a_session_one_is_made_and_stopped(ran: Runs, session: Session, empty: str) -> None:
    """Spark is the tests' own: how it is started is what `lakebroker sql --engine spark` shows too."""
    made, stopped = session.spark.newSession(), list[bool]()
    made.stop = lambda: stopped.append(True)  # type: ignore[method-assign]
    with (
        patch.object(SparkContext, "_active_spark_context", None),
        patch.object(sql, "delta_session", lambda *given, **named: made),
    ):
        left = ran.here.run(IN_KERNEL, {"lake": empty})
    assert SAID_OF_NOTHING[IN_KERNEL] in left.printed
    assert not left.drawn
    assert "in the Spark session that already exists" not in left.printed
    assert stopped == [True]
    assert not notebook_session._made


@LONG
def test_in_a_kernel_without_a_session_one_is_made_and_stopped(empty: str, tmp_path: Path) -> None:
    after = "from pyspark import SparkContext\nprint(SparkContext._active_spark_context)"
    left, said = run_in_kernel(IN_KERNEL, {"lake": empty}, after, tmp_path)
    assert said.strip() == "None"
    assert SAID_OF_NOTHING[IN_KERNEL] in left.printed
    assert not left.drawn
