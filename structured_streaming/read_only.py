"""Which statements only read: judged by Spark's own parse of them, not by their words.

Allowed are queries (every node of the plan is known to read), `SHOW`, `DESCRIBE`, `EXPLAIN` of what is allowed,
and temporary views over queries, which end with the session. What is not known is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from structured_streaming.errors import ReadOnlyError
from structured_streaming.interruptible import active_meanwhile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY = re.compile(
    "Aggregate|AsOfJoin|CTERelationDef|Deduplicate|Distinct|Except|Filter|Generate|GlobalLimit|Intersect|Join"
    "|LateralJoin|LocalLimit|LocalRelation|Offset|OneRowRelation|PipeOperator|Pivot|Project|Range"
    "|RebalancePartitions|RelationTimeTravel|Repartition|RepartitionByExpression|Sample|Sort|SubqueryAlias|Tail"
    "|TimeTravel|Union|Unpivot|UnresolvedHaving|UnresolvedHint|UnresolvedInlineTable|UnresolvedQualify"
    "|UnresolvedRelation|UnresolvedSubqueryColumnAliases|UnresolvedTVFAliases|UnresolvedTableValuedFunction"
    "|UnresolvedWith|Window|WithCTE|WithWindowDefinition"
)
"""Kinds of nodes that a plan of Spark's parser has for what only reads."""
_INFORMATION = re.compile(
    "Describe(Column|DeltaDetailCommand|DeltaHistory|Function|Namespace|QueryCommand|Relation)"
    "|Show(Columns|CreateTable|CurrentNamespace|CurrentNamespaceCommand|Functions|Namespaces|Partitions"
    "|TableExtended|TableProperties|Tables|Views)"
)
_CALLS = frozenset({"reflect", "try_reflect", "java_method"})
"""Functions that call any Java method."""


class Node(NamedTuple):
    """Of a plan, with its kind and the functions that it calls (see `functions_of`)."""

    kind: str
    node: Any
    functions: tuple[str | None, ...]


class Statement:
    """One statement, which Spark parses once for all that is to be known of it. Properties raise pyspark's ParseException."""

    def __init__(self, session: SparkSession, text: str) -> None:
        self.session = session
        self.text = text

    @functools.cached_property
    def plan(self) -> Any:
        """As Spark's parser makes it; of an EXPLAIN, that which it explains."""
        with active_meanwhile(self.session):  # the parser has its options from the thread's session
            plan = self.session._jsparkSession.sessionState().sqlParser().parsePlan(self.text)
        return plan.logicalPlan() if kind_of(plan) == "ExplainCommand" else plan

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Of its query, up to the first that is of no query. They are kept: to go through a plan is a call of the JVM for each step,
        and takes longer than to parse it."""
        found: list[Node] = []
        for node in tree_of(query_of(self.plan)):
            kind = kind_of(node)
            if not QUERY.fullmatch(kind):
                return [*found, Node(kind, node, ())]
            found.append(Node(kind, node, tuple(functions_of(node))))
        return found


def check_read_only(statement: Statement) -> None:
    """Raises ReadOnlyError when the statement may change something, pyspark's ParseException for bad SQL."""
    if _INFORMATION.fullmatch(kind_of(statement.plan)):
        return
    for kind, _, functions in statement.nodes:
        if not QUERY.fullmatch(kind):
            raise ReadOnlyError(_words(kind))
        for call in functions:
            if call is None:
                raise ReadOnlyError("a function that IDENTIFIER names, which may be any (write its name),")
            if call in _CALLS:
                raise ReadOnlyError(f"{call}(), which calls any Java method,")


def query_of(plan: Any) -> Any:
    """The query of a temporary view that a plan makes; other plans as they are."""
    temporary = kind_of(plan) == "CreateViewCommand" and plan.viewType().toString() == "LocalTempView"
    return plan.plan() if temporary else plan


def tree_of(plan: Any) -> Iterator[Any]:
    """The plan and all plans in it: children, common table expressions, subqueries."""
    yield plan
    inner, subqueries = plan.innerChildren(), plan.subqueries()
    for below in (plan.children(), subqueries, *(() if inner.equals(subqueries) else (inner,))):
        for each in each_of(below):
            yield from tree_of(each)


def functions_of(plan: Any) -> Iterator[str | None]:
    """Names of the functions that a node calls, in lower case and without their namespaces; None for one whose name is an
    expression."""
    waiting = list(each_of(plan.expressions()))
    if kind_of(plan) == "WithWindowDefinition":  # they stand in a map, which `expressions` leaves out
        for window in each_of(plan.windowDefinitions().values()):
            waiting.extend(each_of(window.children()))
    while waiting:
        expression = waiting.pop()
        if kind_of(expression) == "UnresolvedFunction":
            yield str(expression.nameParts().last()).lower()
        if (
            kind_of(expression) == "ExpressionWithUnresolvedIdentifier"
            and not expression.otherExprs().isEmpty()
        ):
            yield None  # without arguments it is a column, or no function that calls Java
        waiting.extend(each_of(expression.children()))


def each_of(sequence: Any) -> Iterator[Any]:
    """The elements of one of Scala's collections."""
    found = sequence.iterator()
    while found.hasNext():
        yield found.next()


def kind_of(node: Any) -> str:
    """The name of a node's class."""
    return str(node.getClass().getSimpleName()).rstrip("$")


def _words(kind: str) -> str:
    """`InsertIntoStatement` as INSERT INTO."""
    name = re.sub(r"(Statement|Command)$", "", kind).removeprefix("Unresolved")
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)).upper()
