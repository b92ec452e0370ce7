"""What a filter is: two stages, the first over entries of the queue index, the second over a message's properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class FilterExpressionError(ValueError):
    """An expression that cannot be read; the text says why."""


class MessageFilter(Protocol):
    """Says which messages are wanted. The first stage may let too many through, never too few."""

    @property
    def everything(self) -> bool:
        """Whether every message is wanted; then neither stage is asked."""

    def mask(self, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The first stage: where a message with that tags code may be wanted."""

    def wants(self, properties: Mapping[str, str]) -> bool:
        """The second stage: whether the message with these properties is wanted."""

    @property
    def work(self) -> int:
        """What the second stage costs beside reading the message, as entries of the queue index that could be looked at."""

    @property
    def costly(self) -> bool:
        """Whether the second stage may take milliseconds of a message: such filters are asked in turn with what others do."""

    @property
    def by_tag(self) -> Callable[[str | None], bool] | None:
        """The second stage where the tag alone decides (None: the message has none); None where more is needed."""
