"""The grammar of SQL92 filters, and what its parts come to; see `sql92.py`, which loads this with the first filter."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import LarkError, UnexpectedInput, UnexpectedToken, VisitError

from broker_gateway.delivery.filters.message_filter import FilterExpressionError

MAX_DEPTH = 64
"""Of operators within each other; a row of ANDs or ORs is one."""
MAX_VALUES = 1024
"""Of one IN."""
MAX_SIZE = 8192
"""Operands and operators that are asked of a message; BETWEEN asks what is on its left twice."""
_A_CONTAINS = 128
"""So many operators CONTAINS counts as: it goes through a whole text, of 16 KiB perhaps."""

_GRAMMAR = r"""
selector: either
?either: both (_OR both)*
?both: equality (_AND equality)*
?equality: comparison
    | equality EQUAL comparison -> equal
    | equality UNEQUAL comparison -> unequal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null
?comparison: unary
    | comparison ORDER unary -> ordered
    | comparison SEARCH TEXT -> found
    | comparison _NOT SEARCH TEXT -> not_found
    | comparison BETWEEN unary _AND unary -> between
    | comparison _NOT BETWEEN unary _AND unary -> not_between
    | comparison IN "(" TEXT ("," TEXT)* ")" -> one_of
    | comparison _NOT IN "(" TEXT ("," TEXT)* ")" -> none_of
?unary: "+" unary
    | MINUS unary -> negated
    | _NOT unary -> inverted
    | primary
?primary: TEXT -> text
    | WHOLE -> whole
    | DECIMAL -> decimal
    | TRUE -> constant
    | FALSE -> constant
    | _NULL -> null
    | NAME -> name
    | "(" either ")"

EQUAL: "="
UNEQUAL.2: "<>"
ORDER: /<(?!>)=?|>=?/
MINUS: "-"
_OR.2: /OR\b(?!\$)/i
_AND.2: /AND\b(?!\$)/i
_NOT.2: /NOT\b(?!\$)/i
_IS.2: /IS\b(?!\$)/i
_NULL.2: /NULL\b(?!\$)/i
BETWEEN.2: /BETWEEN\b(?!\$)/i
IN.2: /IN\b(?!\$)/i
SEARCH.2: /(CONTAINS|STARTSWITH|ENDSWITH)\b(?!\$)/i
TRUE.2: /TRUE\b(?!\$)/i
FALSE.2: /FALSE\b(?!\$)/i
NAME: /[a-zA-Z_$][a-zA-Z0-9_$]*/
TEXT: /'(?:''|[^'])*'/
DECIMAL.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE: /0|[1-9][0-9]*[lL]?/

%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*/
%ignore /\/\*[^*]*\*(?:[^*\/][^*]*\*|\*)*\//
"""


class _Long(int):
    """A whole number that an Integer of Java has no room for, or a property read beside one."""


Value = str | int | float | bool | None
"""Of an operand: a text, a number (`int` stands for Java's Integer), a truth, or NULL."""
Evaluate = Callable[[Mapping[str, str]], Value]


class _NoNumberError(Exception):
    """A text is compared with what it cannot be: the expression does not match."""


class _Node(NamedTuple):
    """A part of an expression: what it comes to, what it is, how deep."""

    evaluate: Evaluate
    is_boolean: bool = False
    is_name: bool = False
    is_constant: bool = False
    constant: Value = None
    depth: int = 1
    size: int = 1
    """How many operands and operators it has."""


def read(expression: str) -> tuple[int, Evaluate]:
    """How many operands and operators an expression has, and what tells whether it is true of some properties: True, or
    anything else. Raises FilterExpressionError."""
    try:
        node = _parser().parse(expression)
    except UnexpectedInput as error:
        raise FilterExpressionError(_unexpected(expression, error)) from error
    except VisitError as error:
        if isinstance(error.orig_exc, FilterExpressionError):
            raise error.orig_exc from error
        raise
    except LarkError as error:
        raise FilterExpressionError(f"SQL filter {expression[:80]!r} cannot be read: {error}") from error
    assert isinstance(node, _Node)
    inner = node.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        try:
            return inner(properties)
        except _NoNumberError:
            return None

    return node.size, evaluate


@functools.cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, start="selector", parser="lalr", lexer="basic", transformer=_Builder())


def _unexpected(expression: str, error: UnexpectedInput) -> str:
    position = error.pos_in_stream or 0
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return f"SQL filter {expression[:80]!r} ends where more is expected"
    word = re.match(r"\w+|.", expression[position:], re.DOTALL)
    said = word.group() if word else ""
    hint = ""
    if said.upper() == "LIKE":
        hint = "; there is no LIKE: use CONTAINS, STARTSWITH or ENDSWITH"
    elif said in ("+", "-", "*", "/", "%"):
        hint = "; there is no arithmetic"
    elif said in ('"', "`"):
        hint = "; texts stand in single quotes, names in none"
    return f"SQL filter {expression[:80]!r}: {said!r} is not expected at character {position + 1}{hint}"


def _refused(token: Token | None, why: str) -> FilterExpressionError:
    place = "" if token is None or token.start_pos is None else f" at character {token.start_pos + 1}"
    return FilterExpressionError(f"SQL filter: {why}{place}")


@v_args(inline=True)
class _Builder(Transformer[Token, _Node]):
    """Makes an expression of what the parser reads; a method for each rule of the grammar."""

    def selector(self, node: _Node) -> _Node:
        return _boolean(node)

    def either(self, *nodes: _Node) -> _Node:
        return _joined(nodes, decides=True)

    def both(self, *nodes: _Node) -> _Node:
        return _joined(nodes, decides=False)

    def equal(self, left: _Node, token: Token, right: _Node) -> _Node:
        for node in (left, right):
            if node.is_constant and node.constant is None:
                raise _refused(token, "NULL equals nothing; write IS NULL or IS NOT NULL")
        if left.is_constant and left.is_boolean and right.is_constant and not right.is_boolean:
            raise _refused(token, "TRUE and FALSE are compared with no number or text")
        return _equal(left, right)

    def unequal(self, left: _Node, token: Token, right: _Node) -> _Node:
        return self.inverted(self.equal(left, token, right))

    def is_null(self, node: _Node) -> _Node:
        return _equal(node, _constant(None))

    def is_not_null(self, node: _Node) -> _Node:
        return self.inverted(self.is_null(node))

    def ordered(self, left: _Node, token: Token, right: _Node) -> _Node:
        return _ordered(left, str(token), right, token)

    def found(self, node: _Node, token: Token, text: Token) -> _Node:
        return _search(node, token, text, True)

    def not_found(self, node: _Node, token: Token, text: Token) -> _Node:
        return _search(node, token, text, False)

    def between(self, node: _Node, token: Token, low: _Node, high: _Node) -> _Node:
        both = self.both(_ordered(node, ">=", low, token), _ordered(node, "<=", high, token))
        if low.is_constant and high.is_constant and _compare(high.constant, low.constant) < 0:
            raise _refused(token, f"nothing is between {low.constant} and {high.constant}: exchange them")
        return both

    def not_between(self, node: _Node, token: Token, low: _Node, high: _Node) -> _Node:
        return self.either(_ordered(node, "<", low, token), _ordered(node, ">", high, token))

    def one_of(self, node: _Node, token: Token, *texts: Token) -> _Node:
        return _one_of(node, token, texts, True)

    def none_of(self, node: _Node, token: Token, *texts: Token) -> _Node:
        return _one_of(node, token, texts, False)

    def negated(self, _: Token, node: _Node) -> _Node:
        def evaluate(properties: Mapping[str, str]) -> Value:
            value = node.evaluate(properties)
            if value is None or isinstance(value, bool | str):
                return None
            return _Long(-value) if isinstance(value, _Long) else -value

        return _over(evaluate, node, is_boolean=False)

    def inverted(self, node: _Node) -> _Node:
        inner = _boolean(node).evaluate

        def evaluate(properties: Mapping[str, str]) -> Value:
            value = inner(properties)
            return None if value is None else not value

        return _over(evaluate, node)

    def text(self, token: Token) -> _Node:
        return _constant(_text(token))

    def whole(self, token: Token) -> _Node:
        digits = token.rstrip("lL")
        value = int(digits) if len(digits) < 20 else 1 << 63
        if value >= 1 << 63:
            raise _refused(token, f"{digits[:40]} is above {(1 << 63) - 1}")
        return _constant(value if value < 1 << 31 else _Long(value))

    def decimal(self, token: Token) -> _Node:
        value = float(token)
        if math.isinf(value):
            raise _refused(token, f"{token[:40]} is above what a double holds")
        return _constant(value)

    def constant(self, token: Token) -> _Node:
        return _constant(token.upper() == "TRUE")

    def null(self) -> _Node:
        return _constant(None)

    def name(self, token: Token) -> _Node:
        key = str(token)
        return _Node(lambda properties: properties.get(key), is_name=True)


def _constant(value: Value) -> _Node:
    is_boolean = value is None or isinstance(value, bool)
    return _Node(lambda _: value, is_boolean=is_boolean, is_constant=True, constant=value)


def _over(evaluate: Evaluate, *nodes: _Node, is_boolean: bool = True, own: int = 1) -> _Node:
    """A part made of others, that counts as so many `own` operators. Raises FilterExpressionError when it is too deep."""
    depth = 1 + max(node.depth for node in nodes)
    if depth > MAX_DEPTH:
        raise FilterExpressionError(f"SQL filter: it nests deeper than {MAX_DEPTH}; write it flatter")
    size = own + sum(node.size for node in nodes)
    if size > MAX_SIZE:
        raise FilterExpressionError(
            f"SQL filter: it asks more than {MAX_SIZE} times of a message (CONTAINS counts {_A_CONTAINS} times); make it smaller"
        )
    return _Node(evaluate, is_boolean=is_boolean, depth=depth, size=size)


def _boolean(node: _Node) -> _Node:
    """As a condition; a property alone is never true, since it is a text."""
    if node.is_boolean:
        return node
    if not node.is_name:
        raise FilterExpressionError(
            "SQL filter: a number or a text is no condition; compare it with something"
        )
    inner = node.evaluate
    return _over(lambda properties: None if inner(properties) is None else False, node)


def _joined(nodes: tuple[_Node, ...], decides: bool) -> _Node:
    """OR, where a part that is true decides, or AND, where one that is false does; NULL where none decides and one is NULL."""
    parts = [_boolean(node).evaluate for node in nodes]

    def evaluate(properties: Mapping[str, str]) -> Value:
        known = True
        for part in parts:
            value = part(properties)
            if value is decides:
                return decides
            known = known and value is not None
        return not decides if known else None

    return _over(evaluate, *nodes)


def _equal(left: _Node, right: _Node) -> _Node:
    first, second = left.evaluate, right.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = first(properties), second(properties)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        if type(one) is str and type(other) is str:
            return one == other
        return _compare(one, other) == 0

    return _over(evaluate, left, right)


_ORDERS: dict[str, Callable[[int], bool]] = {
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def _ordered(left: _Node, operator: str, right: _Node, token: Token) -> _Node:
    for node in (left, right):
        if node.is_boolean or (node.is_constant and isinstance(node.constant, str)):
            what = repr(node.constant) if node.is_constant else "a condition"
            raise _refused(token, f"{what} has no order; only numbers and properties do")
    first, second, holds = left.evaluate, right.evaluate, _ORDERS[operator]

    def evaluate(properties: Mapping[str, str]) -> Value:
        one = first(properties)
        other = None if one is None else second(properties)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _double(one), _double(other)
        return holds(_compare(one, other))

    return _over(evaluate, left, right)


def _search(node: _Node, token: Token, text: Token, wanted: bool) -> _Node:
    inner, sought, operator = node.evaluate, _text(text), token.upper()
    test = {"CONTAINS": str.__contains__, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith}[operator]

    def evaluate(properties: Mapping[str, str]) -> Value:
        if not sought:
            return False
        value = inner(properties)
        return isinstance(value, str) and test(value, sought) is wanted

    return _over(evaluate, node, own=_A_CONTAINS if operator == "CONTAINS" else 1)


def _one_of(node: _Node, token: Token, texts: tuple[Token, ...], wanted: bool) -> _Node:
    if not node.is_name:
        raise _refused(token, "IN asks for a property on its left")
    if len(texts) > MAX_VALUES:
        raise _refused(token, f"IN has {len(texts)} values, at most {MAX_VALUES} are read,")
    inner, values = node.evaluate, frozenset(map(_text, texts))

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        return None if value is None else (value in values) is wanted

    return _over(evaluate, node)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _compare(left: Value, right: Value) -> int:
    """Below, at or above 0, as Java compares two values that are there. Raises _NoNumberError."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_truths(left, right)
    if isinstance(left, str) and isinstance(right, int | float):
        return _sign(_as_kind_of(right, left), right)
    if isinstance(left, int | float) and isinstance(right, str):
        return _sign(left, _as_kind_of(left, right))
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    return _sign(left, right)


def _compare_truths(left: Value, right: Value) -> int:
    """Where one is a truth. Raises _NoNumberError: beside a text on its right, the original fails."""
    if isinstance(left, bool) and isinstance(right, str):
        raise _NoNumberError
    if isinstance(left, str):
        left = left.lower() == "true"
    return left - right if isinstance(left, bool) and isinstance(right, bool) else -1


def _sign(left: float, right: float) -> int:
    if isinstance(left, float) or isinstance(right, float):
        one, other = _double_order(float(left)), _double_order(float(right))
        return (one > other) - (one < other)
    return (left > right) - (left < right)


def _as_kind_of(number: float, text: str) -> float:
    """A text as a number of the kind that it is compared with. Raises _NoNumberError."""
    if isinstance(number, float):
        return _double(text)
    if not _WHOLE_TEXT.fullmatch(text):
        raise _NoNumberError
    value, bits = int(text), 63 if isinstance(number, _Long) else 31
    if not -(1 << bits) <= value < 1 << bits:
        raise _NoNumberError
    return value


_WHOLE_TEXT = re.compile(r"[+-]?[^\W\D\U00010000-\U0010ffff]{1,64}")
"""What Java reads as a whole number: digits of any script of the first plane."""
_DOUBLE_TEXT = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_BLANK = "".join(map(chr, range(33)))


@functools.lru_cache(maxsize=64)
def _double(text: str) -> float:
    """As Java reads a double; kept, since an expression may ask a thousand times for a text of 16 KiB. Raises _NoNumberError."""
    stripped = text.strip(_BLANK)
    found = _DOUBLE_TEXT.fullmatch(stripped)
    if found is None:
        raise _NoNumberError
    if stripped.lstrip("+-") in ("NaN", "Infinity"):
        return float(stripped)
    digits = stripped.rstrip("fFdD") if found["hex"] is None else re.sub(r"[fFdD]$", "", stripped)
    try:
        return float(digits) if found["hex"] is None else float.fromhex(digits)
    except OverflowError:
        return -math.inf if digits.startswith("-") else math.inf


def _double_order(value: float) -> tuple[float, float]:
    """In the order of Java's doubles: -0.0 before 0.0, NaN behind all."""
    if math.isnan(value):
        return math.inf, 1.0
    return value, math.copysign(0.5, value) if value == 0 else 0.0
