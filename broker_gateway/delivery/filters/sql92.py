"""SQL92 filters over a message's properties: RocketMQ's language, with its three-valued logic. No IO.

| what | as the original has it |
|---|---|
| operators | `= <> < <= > >=`, `[NOT] BETWEEN … AND …`, `[NOT] IN ('a', 'b')`, `IS [NOT] NULL`, `[NOT] CONTAINS 'a'`, STARTSWITH, ENDSWITH, NOT, AND, OR, parentheses; no LIKE, no arithmetic |
| `NOT` | binds to the one operand behind it: `NOT a = 1` compares `NOT a` with 1 |
| a property | a text, or NULL. Beside a number it is read as one of that kind, beside TRUE or FALSE it is whether it says true; beside another text `=` and `<>` compare texts, the others numbers |
| a text that is no number where one is needed | the whole expression does not match, whatever else it says |

Where the original reads no further than it understands, as in `a = 1 LIKE 'b'`, this refuses the expression. `--` always begins
a comment, which may be the end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from broker_gateway.delivery.filters.message_filter import FilterExpressionError

if TYPE_CHECKING:
    from broker_gateway.delivery.filters.sql92_grammar import Evaluate

MAX_EXPRESSION_LENGTH = 8192
"""Characters: some 30 ms to read."""
_SHORT = 256
"""Characters. What is kept of an expression takes some 80 bytes for each."""
_COSTLY = 512
"""Work: some 0.2 ms of a message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages for whose properties the expression is true."""

    expression: str
    work: int
    """One for each operand and operator, all of which may be asked."""
    _evaluate: Evaluate

    @property
    def everything(self) -> bool:
        return False

    def mask(self, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tags codes tell nothing of properties."""
        return np.ones(len(codes), dtype=np.bool_)

    def wants(self, properties: Mapping[str, str]) -> bool:
        """Whether the expression is true; false and unknown are alike."""
        return self._evaluate(properties) is True

    @property
    def costly(self) -> bool:
        return self.work > _COSTLY

    @property
    def by_tag(self) -> None:
        """The tag alone never decides."""
        return None


def parse_sql_filter(expression: str) -> SqlFilter:
    """Reads an expression; of short ones many are kept, which long ones of strangers do not drive out. Raises
    FilterExpressionError, which names the place. The first one loads the grammar, some 0.1 s."""
    return (_short if len(expression) <= _SHORT else _long)(expression)


def _read(expression: str) -> SqlFilter:
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise FilterExpressionError(
            f"filter expression has {len(expression)} characters, at most {MAX_EXPRESSION_LENGTH} are read"
        )
    if not expression.strip():
        raise FilterExpressionError("the SQL filter is empty; write one such as `price > 10`")
    from broker_gateway.delivery.filters.sql92_grammar import read

    return SqlFilter(expression, *read(expression))


_short = functools.lru_cache(maxsize=1024)(_read)
_long = functools.lru_cache(maxsize=64)(_read)
