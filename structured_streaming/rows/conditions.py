"""What a column of the rows that are wanted is to be: as much of a filter as records can be told by."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Relation = Literal["=", "<", "<=", ">", ">=", "in"]
_COMPARED: dict[Relation, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
STORED = "store_timestamp"


class Condition(NamedTuple):
    """What a column is to be; times in microseconds since the epoch, of `in` a tuple of values."""

    column: str
    relation: Relation
    value: Any

    def holds(self, value: Any) -> bool:
        """Whether one value meets it."""
        if self.relation == "in":
            return value in self.value
        return bool(_COMPARED[self.relation](value, self.value))

    def mask(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which values meet it."""
        if self.relation == "in":
            return np.isin(values, self.value)
        found: NDArray[np.bool_] = _COMPARED[self.relation](values, self.value)
        return found
