"""RocketMQ's DataVersion: how a name server or a slave sees that a file of `config/` changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_MOST = (1 << 63) - 1


class DataVersionError(ValueError):
    """A data version that makes no sense; the text says why."""


class DataVersion(NamedTuple):
    """Compared in the order of its fields, as the original does; the timestamp in ms since the epoch."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """A later one, whatever the clock says."""
        return DataVersion(
            self.state_version, min(self.counter + 1, _MOST), min(max(now_ms, self.timestamp_ms + 1), _MOST)
        )

    def to_json(self) -> dict[str, int]:
        """As the files have it."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }


def parse_data_version(found: object) -> DataVersion:
    """The `dataVersion` of a file; a missing one is the lowest. Raises DataVersionError."""
    if found is None:
        return DataVersion()
    if not isinstance(found, Mapping):
        raise DataVersionError(f"dataVersion is {found!r}, expected an object")
    return DataVersion(_number(found, "stateVersion"), _number(found, "counter"), _number(found, "timestamp"))


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name, 0)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise DataVersionError(f"{name} of dataVersion is {value!r}, expected a number of 0 to {_MOST}")
    return value
