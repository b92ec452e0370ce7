"""What `lakebroker gateway --check` prints: a row for each finding, the bad ones told on standard error too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from broker_gateway.cli.output import show, show_table, warn
from broker_gateway.runtime.errors import StartError
from store.counting import counted

if TYPE_CHECKING:
    from broker_gateway.app.check.finding import Finding


def show_check(
    config_file: Path | None, overrides: Mapping[str, str], processes: int, *, offline: bool, as_json: bool
) -> int:
    """Prints the findings; returns the exit status, 1 where a start would end."""
    from broker_gateway.app.check.finding import Verdict

    found = _findings(config_file, overrides, processes, offline)
    if as_json:
        rows = [{**each._asdict(), "verdict": each.verdict.value} for each in found]
        show(rows, [], as_json=True)
    else:
        several = ["broker"] if processes > 1 else []
        show_table(
            ["verdict", *several, "check", "found, and what to do"], [_cells(each, several) for each in found]
        )
    failed = [each.check for each in found if each.verdict is Verdict.FAIL]
    if failed:
        warn(
            [
                f"the broker would not start: {counted(len(failed), 'check')} failed ({', '.join(dict.fromkeys(failed))})"
            ]
        )
    return 1 if failed else 0


def _cells(found: Finding, several: Sequence[str]) -> list[str]:
    """Of a row; the remedy stands below what was found."""
    broker = [found.broker or "all"] if several else []
    text = f"{found.value}\n=> {found.remedy}" if found.remedy else found.value
    return [found.verdict.value, *broker, found.check, text]


def _findings(
    config_file: Path | None, overrides: Mapping[str, str], processes: int, offline: bool
) -> Sequence[Finding]:
    from broker_gateway.app.check.finding import fail
    from broker_gateway.app.check.run import check
    from broker_gateway.config.gateway import load_config
    from broker_gateway.runtime.logs import configure_logs

    configure_logs("text", "error")  # what a reader of the lake logs is none of the table's
    try:
        config, warnings = load_config(config_file, overrides)
    except StartError as error:
        return [fail("configuration", str(error))]
    return check(config, warnings, processes, offline=offline)
