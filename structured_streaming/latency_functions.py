"""SQL functions over the latency sketches of `broker_stats`: the same names and answers in Spark and DuckDB. Imports neither.

A sketch is a map: calls by bucket; bucket b holds latencies above 1.04^(b-1) and up to 1.04^b ms. Merging adds counts, so minutes,
brokers and log ids merge in any order. Every function takes an array of sketches, as `array_agg(latency)` makes it of a group's
rows in both engines: neither makes aggregates of SQL, and in Spark no function of SQL takes another one's answer where both go
through arrays. Merged sketches merge on by `array_agg` again.

| function | answer | error |
|---|---|---|
| `latency_merge(sketches)` | one sketch | none |
| `latency_count(sketches)` | calls | none |
| `latency_quantile(sketches, part)` | ms that this part (0 to 1) of the calls took at most | never too low, at most 4 % too high |
| `latency_mean(sketches)` | mean in ms | never too low, at most 4 % too high |
| `latency_below(sketches, limit_ms)` | part of the calls that took at most so long | never too high, and at least what took at most 1/1.04 of it |

Latencies below 1 µs count as 1 µs. Nothing (no rows, NULL, empty sketches) merges to an empty sketch, has 0 calls, and NULL for
the rest. A part or limit that is NULL makes NULL; a part beyond 0 to 1 is an error. A count that is not above 0, which no broker
writes, is passed over; sums end at the greatest BIGINT; times end at 1.04^1000 ms.

Merging costs rows times buckets: some ten thousand rows a second. Of millions of rows, merge parts first (by day, say).
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST = (1 << 63) - 1
_LAST = 1000
"""The bucket that greater ones count as: three million years, and powers beyond have no number in some engine."""
_DIGITS = 9
"""Of ms: below what a power of 1.04 is in either engine."""


@dataclass(frozen=True, slots=True)
class Function:
    """An SQL function: its parameters' names and types, its type, and its bodies in Spark and DuckDB."""

    name: str
    comment: str
    parameters: tuple[tuple[str, str], ...]
    returns: str
    spark: str
    duckdb: str


_SKETCH = "MAP<INT, BIGINT>"
_SKETCHES = ("sketches", f"ARRAY<{_SKETCH}>")
_WRONG = "' is no part of the calls: give latency_quantile one from 0 to 1, such as 0.99'"
_SPARK_MERGED = f"""aggregate(
  filter(coalesce(sketches, array()), sketch -> sketch IS NOT NULL),
  CAST(map() AS {_SKETCH}),
  (merged, sketch) -> map_zip_with(merged, map_filter(sketch, (bucket, calls) -> calls > 0),
    (bucket, calls, more) -> coalesce(try_add(coalesce(calls, 0L), coalesce(more, 0L)), {_MOST}L)),
  merged -> array_sort(map_entries(merged)))"""
"""Entries of the merged sketch, by bucket: key and value. In DuckDB, a lambda's outer values are made for each element: what
is wanted once is the element of a list."""
_DUCKDB_MERGED = """list_filter(
  list_transform(
    list_sort(list_distinct(flatten(list_transform(sketches, lambda sketch: map_keys(sketch))))),
    lambda bucket: {'key': bucket,
                    'value': list_sum(list_transform(sketches, lambda sketch: greatest(sketch[bucket], 0)))}),
  lambda entry: entry.value > 0)"""
_SPARK_UPPER = f"pow(1.04D, least(entry.key, {_LAST}))"
_DUCKDB_UPPER = f"pow(1.04::DOUBLE, least(entry.key, {_LAST}))"


def _of_spark(answer: str) -> str:
    """An answer of `found`, entries of the merged sketch, and `calls`, their sum as DOUBLE."""
    return f"""transform(array(transform(array({_SPARK_MERGED}), found ->
  named_struct('found', found, 'calls', aggregate(found, 0D, (total, entry) -> total + entry.value)))[0]), merged -> {answer})[0]"""


def _of_duckdb(answer: str) -> str:
    return f"""list_transform([list_transform([{_DUCKDB_MERGED}], lambda found:
  {{'found': found, 'calls': CAST(list_sum(list_transform(found, lambda entry: entry.value)) AS DOUBLE)}})[1]],
  lambda merged: {answer})[1]"""


FUNCTIONS = (
    Function(
        "latency_merge",
        "One latency sketch of many: calls by bucket",
        (_SKETCHES,),
        _SKETCH,
        f"map_from_entries({_SPARK_MERGED})",
        f"""map_from_entries(coalesce(list_transform({_DUCKDB_MERGED}, lambda entry:
  {{'key': CAST(entry.key AS INTEGER), 'value': CAST(least(entry.value, {_MOST}) AS BIGINT)}}), []))""",
    ),
    Function(
        "latency_count",
        "Calls in latency sketches",
        (_SKETCHES,),
        "BIGINT",
        f"""aggregate({_SPARK_MERGED}, 0L, (total, entry) -> coalesce(try_add(total, entry.value), {_MOST}L))""",
        f"""CAST(least(coalesce(list_sum(list_transform({_DUCKDB_MERGED}, lambda entry: entry.value)), 0), {_MOST}) AS BIGINT)""",
    ),
    Function(
        "latency_quantile",
        "ms that this part of the calls took at most: at most 4 % above the exact one, never below it",
        (_SKETCHES, ("part", "DOUBLE")),
        "DOUBLE",
        "CASE WHEN part < 0 OR part > 1 OR isnan(part) THEN raise_error(concat(CAST(part AS STRING), "
        + _WRONG
        + ")) ELSE "
        + _of_spark(
            f"""aggregate(merged.found, named_struct('upper', CAST(NULL AS DOUBLE), 'seen', 0D),
    (before, entry) -> CASE WHEN before.upper IS NOT NULL AND before.seen >= ceil(round(part * merged.calls, 6)) THEN before
                   ELSE named_struct('upper', {_SPARK_UPPER}, 'seen', before.seen + entry.value) END,
    before -> CASE WHEN part IS NOT NULL THEN round(before.upper, {_DIGITS}) END)"""
        )
        + " END",
        "CASE WHEN part < 0 OR part > 1 THEN error(concat(CAST(CAST(part AS DOUBLE) AS VARCHAR), "
        + _WRONG
        + ")) ELSE "
        + _of_duckdb(
            f"""CASE WHEN part IS NOT NULL AND len(merged.found) > 0 THEN round(list_reduce(
    list_transform(merged.found, lambda entry: {{'upper': {_DUCKDB_UPPER}, 'seen': CAST(entry.value AS DOUBLE)}}),
    lambda before, entry: CASE WHEN before.seen >= ceil(round(part * merged.calls, 6)) THEN before
                      ELSE {{'upper': entry.upper, 'seen': before.seen + entry.seen}} END).upper, {_DIGITS}) END"""
        )
        + " END",
    ),
    Function(
        "latency_mean",
        "Mean of the calls in ms: at most 4 % above the exact one, never below it",
        (_SKETCHES,),
        "DOUBLE",
        _of_spark(
            f"""round(aggregate(merged.found, 0D, (total, entry) -> total + entry.value * {_SPARK_UPPER})
    / nullif(merged.calls, 0D), {_DIGITS})"""
        ),
        _of_duckdb(
            f"""round(list_sum(list_transform(merged.found, lambda entry: entry.value * {_DUCKDB_UPPER}))
    / merged.calls, {_DIGITS})"""
        ),
    ),
    Function(
        "latency_below",
        "Part of the calls that took at most so many ms: never above the exact one",
        (_SKETCHES, ("limit_ms", "DOUBLE")),
        "DOUBLE",
        _of_spark(
            """CASE WHEN limit_ms IS NOT NULL THEN
    aggregate(filter(merged.found, entry -> limit_ms > 0 AND entry.key <= floor(ln(limit_ms) / ln(1.04D) + 1e-9D)), 0D,
      (total, entry) -> total + entry.value) / nullif(merged.calls, 0D) END"""
        ),
        _of_duckdb(
            """CASE WHEN limit_ms IS NOT NULL THEN coalesce(list_sum(list_transform(list_filter(merged.found,
      lambda entry: limit_ms > 0 AND entry.key <= floor(ln(CASE WHEN limit_ms > 0 THEN limit_ms END) / ln(1.04::DOUBLE) + 1e-9)),
      lambda entry: CAST(entry.value AS DOUBLE))), 0) / merged.calls END"""
        ),
    ),
)


def in_spark(schema: str = "") -> dict[str, str]:
    """By a function's name, the statement that makes it: a temporary one of a session or, with a schema's quoted name, one of a
    catalog."""
    return {
        each.name: f"CREATE OR REPLACE {'FUNCTION ' + schema + '.' if schema else 'TEMPORARY FUNCTION '}{each.name}("
        + ", ".join(f"{name} {kind}" for name, kind in each.parameters)
        + f") RETURNS {each.returns} COMMENT '{each.comment}' RETURN {each.spark}"
        for each in FUNCTIONS
    }


def in_duckdb() -> list[str]:
    """Statements that make the functions, in the database that is open."""
    return [
        f"CREATE OR REPLACE MACRO {each.name}({', '.join(name for name, _ in each.parameters)}) AS {each.duckdb}"
        for each in FUNCTIONS
    ]
