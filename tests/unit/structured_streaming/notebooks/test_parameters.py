"""Parameters come from widgets, the environment or their defaults; what is no number is named with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from structured_streaming.notebooks import parameters
from structured_streaming.notebooks.errors import NotebookError


class Widgets:
    """Databricks' widgets as a job or a user left them."""

    def __init__(self, **values: str) -> None:
        self.values = values
        self.made: dict[str, tuple[str, str]] = {}
        self.widgets = self

    def text(self, name: str, default: str, label: str) -> None:
        self.made[name] = default, label

    def get(self, name: str) -> str:
        return self.values.get(name, self.made[name][0])


def test_a_widget_goes_before_the_environment_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKEBROKER_TOPIC", "of the environment")
    monkeypatch.delenv("LAKEBROKER_HOURS", raising=False)
    assert parameters.read(["topic", "hours"]) == {"topic": "of the environment", "hours": "24"}
    widgets = Widgets(hours=" 7 ")
    assert parameters.read(["topic", "hours"], widgets) == {"topic": "of the environment", "hours": "7"}
    assert widgets.made["topic"] == ("of the environment", "Topic; empty: all")
    assert parameters.read(["topic"], Widgets(topic=" ")) == {"topic": "of the environment"}


def test_a_notebook_asks_for_parameters_that_there_are() -> None:
    with pytest.raises(NotebookError, match="no parameter 'topics'; there are lake, brokers, "):
        parameters.read(["topics"])


@pytest.mark.parametrize("given", ["many", "0", "-1", "nan", "inf", "1e9", ""])
def test_what_is_no_number_within_its_bounds_is_named_with_the_remedy(given: str) -> None:
    with pytest.raises(NotebookError) as refused:
        parameters.number({"hours": given}, "hours")
    said = str(refused.value)
    assert said.startswith(f"hours={given!r} is no number from 0.1 to 8784;")
    assert "LAKEBROKER_HOURS" in said


def test_an_error_is_shown_as_a_sentence() -> None:
    assert NotebookError("give a lake")._render_traceback_() == ["give a lake"]


def test_without_a_lake_the_demo_s_is_taken_here_or_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    with pytest.raises(NotebookError, match=r"set LAKEBROKER_LAKE \(on Databricks the widget lake\)"):
        parameters.lake_location("")
    lake = tmp_path / "demo-output" / "lake"
    lake.mkdir(parents=True)
    assert parameters.lake_location("") == str(lake)
    assert parameters.lake_location("main.lakebroker") == "main.lakebroker"
