"""What a metrics port serves, as Prometheus would read it."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from lakebroker_testing.gateway import Reput

PATIENCE_S = 240
Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""By name and labels."""


def scraped(url: str) -> Numbers:
    """As it is now."""
    with urllib.request.urlopen(url, timeout=30) as answer:
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
    until = time.monotonic() + PATIENCE_S
    while not (found := re.search(r"metrics at (http://\S+)\n", reput.log.read_text())):
        reput.batches()  # whether it ended
        assert time.monotonic() < until, reput.log.read_text()[-2000:]
        time.sleep(0.1)
    return found[1]


def once_it_says(url: str, so: Callable[[Numbers], bool]) -> Numbers:
    """Waits until the numbers are so."""
    until = time.monotonic() + PATIENCE_S
    while not so(numbers := scraped(url)):
        assert time.monotonic() < until, numbers
        time.sleep(0.2)
    return numbers
