"""The longest files come first, so that no worker is left alone with one of them at the end."""

from __future__ import annotations

import pytest

_LONGEST = (
    "catalogs",
    "store_exchange",
    "object_store",
    "sidecar",
    "put_off_exchange",
    "scale_out",
    "spark_versions",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {f"test_{name}.py": at for at, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
