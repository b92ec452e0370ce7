"""Tag filters: `*` or `a || b`, as RocketMQ's FilterAPI reads them. No IO."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from broker_gateway.delivery.filters.message_filter import FilterExpressionError
from store.log.record import tags_code

MAX_EXPRESSION_LENGTH = 16_384
"""Characters; the original has no limit of its own. A tag may have this many bytes, so every tag can be asked for."""
MAX_TAGS = 1024
_DOUBTFUL = re.compile(r"[|&,\s]")
"""In a tag: as in the original only `||` divides, and `a && b` or `a |` is a tag of that name."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Tags to let through; none: everything. `doubtful` of them look like an expression that is meant otherwise."""

    tags: frozenset[str]
    codes: NDArray[np.int64]
    doubtful: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        return not self.tags

    def mask(self, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where the tags code may match."""
        if not self.tags:
            return np.ones(len(codes), dtype=np.bool_)
        if len(self.codes) == 1:
            return np.asarray(codes == self.codes[0])
        return np.isin(codes, self.codes)

    def wants(self, properties: Mapping[str, str]) -> bool:
        """The tag itself decides, since codes collide."""
        return self.matches(properties.get("TAGS"))

    @property
    def work(self) -> int:
        """A look-up."""
        return 0

    @property
    def costly(self) -> bool:
        return False

    @property
    def by_tag(self) -> Callable[[str | None], bool]:
        return self.matches

    def matches(self, tag: str | None) -> bool:
        """Whether messages with that tag are wanted."""
        return not self.tags or tag in self.tags


EVERYTHING = TagFilter(frozenset(), np.empty(0, dtype=np.int64))


@lru_cache(maxsize=512)
def parse_tag_filter(expression: str) -> TagFilter:
    """Reads `*`, an empty expression (both: everything) or tags divided by `||`.

    Raises FilterExpressionError: too long, too many tags, or no tag in it.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise FilterExpressionError(
            f"filter expression has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} are read"
        )
    if not expression.strip() or expression.strip() == "*":
        return EVERYTHING
    tags = frozenset(part.strip() for part in expression.split("||") if part.strip())
    if not tags:
        raise FilterExpressionError(
            f"filter expression {expression[:80]!r} names no tag; write `a || b` or `*`"
        )
    if "*" in tags:
        return EVERYTHING
    if len(tags) > MAX_TAGS:
        raise FilterExpressionError(f"filter expression names {len(tags)} tags, at most {MAX_TAGS} are read")
    codes = np.array(sorted(tags_code(tag) for tag in tags), dtype=np.int64)
    return TagFilter(tags, codes, tuple(sorted(filter(_DOUBTFUL.search, tags))))
