"""Words of `lakebroker gateway`, for tests that start it themselves."""

from __future__ import annotations

from pathlib import Path

from lakebroker_testing.gateway import LOOPBACK, settings_of


def gateway_words(folder: Path, *arguments: str, **options: str) -> list[str]:
    """A broker on free ports of the loopback interface, whose store and list of ports go into `folder`; `options` go before."""
    given = {
        "storePathRootDir": str(folder / "store"),
        "lakePortFile": str(folder / "ports.json"),
        **LOOPBACK,
        "mappedFileSizeCommitLog": str(16 << 20),
        **options,
    }
    return ["gateway", *arguments, *settings_of(given)]
