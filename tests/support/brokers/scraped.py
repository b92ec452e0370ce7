"""What a metrics port serves, as Prometheus would read it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from lakebroker_testing.gateway import Reput
from lakebroker_testing.programs import until_ready
from tests.support.waiting import LIMIT_S, wait_until

_AT = re.compile(r"metrics at (http://\S+)\n")
Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""By name and labels."""


def scraped(url: str) -> Numbers:
    """As it is now."""
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(numbers: Numbers, name: str, **labels: str) -> float:
    return numbers[name, frozenset(labels.items())]


def metric(port: int, name: str, **labels: str) -> float:
    """Of a broker on this machine: the first with these labels among its own."""
    numbers = scraped(f"http://127.0.0.1:{port}/metrics")
    return next(found for (each, own), found in numbers.items() if each == name and labels.items() <= own)


def metrics_url(reput: Reput) -> str:
    """Where a reput with --metrics-port serves; waits until it does."""
    return until_ready("the reput", reput.process, reput.log, lambda: _AT.search(reput.log.read_text()))[1]


def once_it_says(url: str, so: Callable[[Numbers], bool]) -> Numbers:
    """Waits until the numbers are so."""
    numbers: Numbers = {}

    def is_so() -> bool:
        nonlocal numbers
        numbers = scraped(url)
        return so(numbers)

    wait_until(is_so, lambda: numbers)
    return numbers
