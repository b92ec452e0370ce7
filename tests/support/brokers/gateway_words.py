"""Words of `lakebroker gateway`, for tests that start it themselves."""

from __future__ import annotations

from pathlib import Path


def gateway_words(folder: Path, *arguments: str, **options: str) -> list[str]:
    """A broker on free ports of the loopback interface, whose store and list of ports go into `folder`; `options` go before."""
    given = {
        "storePathRootDir": str(folder / "store"),
        "lakePortFile": str(folder / "ports.json"),
        "grpcServerPort": "0",
        "grpcBindAddress": "127.0.0.1",
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "metricsPromExporterPort": "0",
        "mappedFileSizeCommitLog": str(16 << 20),
        **options,
    }
    settings = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    return ["gateway", *arguments, *settings]
