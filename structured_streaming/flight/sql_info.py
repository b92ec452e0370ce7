"""What the server says of itself and of its SQL (GetSqlInfo), and of its types (GetXdbcTypeInfo).

Sources: the comments of Arrow's FlightSql.proto for the meaning of the numbers, DuckDB's documentation for the facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import NamedTuple

import pyarrow as pa

from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2 as flight_sql

VALUE = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.field("string_data", pa.string()))),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.field("$data$", pa.int32())))),
    ]
)
SQL_INFO = pa.schema([pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", VALUE)])
XDBC_TYPE_INFO = pa.schema(
    [
        pa.field("type_name", pa.string(), nullable=False),
        pa.field("data_type", pa.int32(), nullable=False),
        pa.field("column_size", pa.int32()),
        pa.field("literal_prefix", pa.string()),
        pa.field("literal_suffix", pa.string()),
        pa.field("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("nullable", pa.int32(), nullable=False),
        pa.field("case_sensitive", pa.bool_(), nullable=False),
        pa.field("searchable", pa.int32(), nullable=False),
        pa.field("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), nullable=False),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", pa.string()),
        pa.field("minimum_scale", pa.int32()),
        pa.field("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), nullable=False),
        pa.field("datetime_subcode", pa.int32()),
        pa.field("num_prec_radix", pa.int32()),
        pa.field("interval_precision", pa.int32()),
    ]
)


class _Bits(int):
    """A value that is a set of bits, or a member of an enumeration."""


_Value = str | bool | int | _Bits | list[str]
_INFO: dict[str, _Value] = {
    "FLIGHT_SQL_SERVER_NAME": "lakebroker",
    "FLIGHT_SQL_SERVER_READ_ONLY": True,
    "FLIGHT_SQL_SERVER_SQL": True,
    "FLIGHT_SQL_SERVER_SUBSTRAIT": False,
    "FLIGHT_SQL_SERVER_TRANSACTION": _Bits(0),
    "FLIGHT_SQL_SERVER_CANCEL": True,
    "FLIGHT_SQL_SERVER_BULK_INGESTION": False,
    "FLIGHT_SQL_SERVER_TRANSACTION_TIMEOUT": _Bits(0),
    "SQL_DDL_CATALOG": False,
    "SQL_DDL_SCHEMA": False,
    "SQL_DDL_TABLE": False,
    "SQL_IDENTIFIER_CASE": _Bits(flight_sql.SQL_CASE_SENSITIVITY_CASE_INSENSITIVE),
    "SQL_IDENTIFIER_QUOTE_CHAR": '"',
    "SQL_QUOTED_IDENTIFIER_CASE": _Bits(flight_sql.SQL_CASE_SENSITIVITY_CASE_INSENSITIVE),
    "SQL_ALL_TABLES_ARE_SELECTABLE": True,
    "SQL_NULL_ORDERING": _Bits(flight_sql.SQL_NULLS_SORTED_AT_END),
    "SQL_KEYWORDS": ["ASOF", "EXCLUDE", "PIVOT", "POSITIONAL", "QUALIFY", "SAMPLE", "SUMMARIZE", "UNPIVOT"],
    "SQL_NUMERIC_FUNCTIONS": [
        *(
            "ABS",
            "CEIL",
            "EXP",
            "FLOOR",
            "GREATEST",
            "LEAST",
            "LN",
            "LOG",
            "LOG10",
            "MOD",
            "PI",
            "POWER",
            "RANDOM",
            "ROUND",
        ),
        *("SIGN", "SQRT", "TRUNC"),
    ],
    "SQL_STRING_FUNCTIONS": [
        *(
            "ASCII",
            "CHR",
            "CONCAT",
            "CONTAINS",
            "LEFT",
            "LENGTH",
            "LOWER",
            "LPAD",
            "LTRIM",
            "REGEXP_MATCHES",
            "REPEAT",
        ),
        *("REPLACE", "REVERSE", "RIGHT", "RPAD", "RTRIM", "SPLIT_PART", "SUBSTRING", "TRIM", "UPPER"),
    ],
    "SQL_SYSTEM_FUNCTIONS": ["COALESCE", "CURRENT_CATALOG", "CURRENT_SCHEMA", "IFNULL", "NULLIF", "VERSION"],
    "SQL_DATETIME_FUNCTIONS": [
        *(
            "AGE",
            "CURRENT_DATE",
            "DATE_DIFF",
            "DATE_PART",
            "DATE_TRUNC",
            "DAYNAME",
            "EPOCH",
            "EXTRACT",
            "MONTHNAME",
            "NOW",
        ),
        *("STRFTIME", "STRPTIME", "TIME_BUCKET"),
    ],
    "SQL_SEARCH_STRING_ESCAPE": "\\",
    "SQL_EXTRA_NAME_CHARACTERS": "",
    "SQL_SUPPORTS_COLUMN_ALIASING": True,
    "SQL_NULL_PLUS_NULL_IS_NULL": True,
    "SQL_SUPPORTS_TABLE_CORRELATION_NAMES": True,
    "SQL_SUPPORTS_DIFFERENT_TABLE_CORRELATION_NAMES": False,
    "SQL_SUPPORTS_EXPRESSIONS_IN_ORDER_BY": True,
    "SQL_SUPPORTS_ORDER_BY_UNRELATED": True,
    "SQL_SUPPORTED_GROUP_BY": _Bits(0b11),
    "SQL_SUPPORTS_LIKE_ESCAPE_CLAUSE": True,
    "SQL_SUPPORTS_NON_NULLABLE_COLUMNS": False,
    "SQL_SUPPORTED_GRAMMAR": _Bits(0b111),
    "SQL_ANSI92_SUPPORTED_LEVEL": _Bits(0b111),
    "SQL_SUPPORTS_INTEGRITY_ENHANCEMENT_FACILITY": False,
    "SQL_OUTER_JOINS_SUPPORT_LEVEL": _Bits(0b100),
    "SQL_SCHEMA_TERM": "schema",
    "SQL_CATALOG_TERM": "catalog",
    "SQL_CATALOG_AT_START": True,
    "SQL_SELECT_FOR_UPDATE_SUPPORTED": False,
    "SQL_STORED_PROCEDURES_SUPPORTED": False,
    "SQL_SUPPORTED_SUBQUERIES": _Bits(0b1111),
    "SQL_CORRELATED_SUBQUERIES_SUPPORTED": True,
    "SQL_SUPPORTED_UNIONS": _Bits(0b11),
    "SQL_DEFAULT_TRANSACTION_ISOLATION": _Bits(0),
    "SQL_TRANSACTIONS_SUPPORTED": False,
    "SQL_BATCH_UPDATES_SUPPORTED": False,
    "SQL_SAVEPOINTS_SUPPORTED": False,
    "SQL_NAMED_PARAMETERS_SUPPORTED": True,
    "SQL_LOCATORS_UPDATE_COPY": False,
    "SQL_STORED_FUNCTIONS_USING_CALL_SYNTAX_SUPPORTED": False,
}


def sql_info(asked: Iterable[int], *, statement_bytes: int, statements: int, idle_s: float) -> pa.Table:
    """Those that were asked for and are known, or all; the numbers are the server's bounds."""
    own: dict[str, _Value] = {
        "FLIGHT_SQL_SERVER_VERSION": version("lakebroker"),
        "FLIGHT_SQL_SERVER_ARROW_VERSION": pa.__version__,
        "FLIGHT_SQL_SERVER_STATEMENT_TIMEOUT": _Bits(idle_s * 1000),
        "SQL_MAX_STATEMENT_LENGTH": statement_bytes,
        "SQL_MAX_STATEMENTS": statements,
    }
    wanted = set(asked)
    known = {flight_sql.SqlInfo.Value(name): value for name, value in (_INFO | own).items()}
    chosen = {number: known[number] for number in sorted(known) if not wanted or number in wanted}
    return pa.table([pa.array(chosen, pa.uint32()), _union(list(chosen.values()))], schema=SQL_INFO)


def _union(values: list[_Value]) -> pa.Array:
    children: list[list[object]] = [[] for _ in range(VALUE.num_fields)]
    kinds, places = [], []
    for value in values:
        kind = _kind(value)
        kinds.append(kind)
        places.append(len(children[kind]))
        children[kind].append(value)
    return pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(places, pa.int32()),
        [pa.array(each, VALUE.field(at).type) for at, each in enumerate(children)],
        [VALUE.field(at).name for at in range(VALUE.num_fields)],
    )


def _kind(value: _Value) -> int:
    if isinstance(value, str):
        return 0
    if isinstance(value, bool):
        return 1
    if isinstance(value, _Bits):
        return 3
    return 2 if isinstance(value, int) else 4


class _Type(NamedTuple):
    name: str
    data_type: int
    size: int | None
    quote: str | None = None
    sign: bool | None = None
    radix: int | None = None
    scales: tuple[int, int] | None = None
    subcode: int | None = None


_SQL_TYPES = (
    _Type("BIGINT", flight_sql.XDBC_BIGINT, 19, sign=True, radix=10),
    _Type("BLOB", flight_sql.XDBC_VARBINARY, None, "'"),
    _Type("BOOLEAN", flight_sql.XDBC_BIT, 1),
    _Type("DATE", flight_sql.XDBC_DATE, 10, "'", subcode=flight_sql.XDBC_SUBCODE_DATE),
    _Type("DECIMAL", flight_sql.XDBC_DECIMAL, 38, sign=True, radix=10, scales=(0, 38)),
    _Type("DOUBLE", flight_sql.XDBC_DOUBLE, 53, sign=True, radix=2),
    _Type("FLOAT", flight_sql.XDBC_REAL, 24, sign=True, radix=2),
    _Type("INTEGER", flight_sql.XDBC_INTEGER, 10, sign=True, radix=10),
    _Type("SMALLINT", flight_sql.XDBC_SMALLINT, 5, sign=True, radix=10),
    _Type("TIME", flight_sql.XDBC_TIME, 15, "'", subcode=flight_sql.XDBC_SUBCODE_TIME, scales=(6, 6)),
    _Type(
        "TIMESTAMP",
        flight_sql.XDBC_TIMESTAMP,
        26,
        "'",
        subcode=flight_sql.XDBC_SUBCODE_TIMESTAMP,
        scales=(6, 6),
    ),
    _Type(
        *("TIMESTAMP WITH TIME ZONE", flight_sql.XDBC_TIMESTAMP, 32, "'"),
        subcode=flight_sql.XDBC_SUBCODE_TIMESTAMP_WITH_TIMEZONE,
        scales=(6, 6),
    ),
    _Type("TINYINT", flight_sql.XDBC_TINYINT, 3, sign=True, radix=10),
    _Type("VARCHAR", flight_sql.XDBC_VARCHAR, None, "'"),
)
_TIMES = (flight_sql.XDBC_DATE, flight_sql.XDBC_TIME, flight_sql.XDBC_TIMESTAMP)
_NAMES = (
    (pa.types.is_int64, "BIGINT"),
    (pa.types.is_int32, "INTEGER"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_decimal, "DECIMAL"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_time, "TIME"),
    (pa.types.is_string, "VARCHAR"),
)


def xdbc_type_info(data_type: int | None) -> pa.Table:
    """The types of columns, or those of one of ODBC's numbers; ordered by number, then name."""
    rows = [
        {
            "type_name": each.name,
            "data_type": each.data_type,
            "column_size": each.size,
            "literal_prefix": each.quote,
            "literal_suffix": each.quote,
            "create_params": ["precision", "scale"] if each.data_type == flight_sql.XDBC_DECIMAL else None,
            "nullable": flight_sql.NULLABILITY_NULLABLE,
            "case_sensitive": each.data_type == flight_sql.XDBC_VARCHAR,
            "searchable": flight_sql.SEARCHABLE_FULL
            if each.data_type == flight_sql.XDBC_VARCHAR
            else flight_sql.SEARCHABLE_BASIC,
            "unsigned_attribute": None if each.sign is None else not each.sign,
            "fixed_prec_scale": False,
            "auto_increment": None if each.sign is None else False,
            "local_type_name": each.name,
            "minimum_scale": each.scales[0] if each.scales else None,
            "maximum_scale": each.scales[1] if each.scales else None,
            "sql_data_type": flight_sql.XDBC_DATETIME if each.data_type in _TIMES else each.data_type,
            "datetime_subcode": each.subcode,
            "num_prec_radix": each.radix,
            "interval_precision": None,
        }
        for each in sorted(_SQL_TYPES, key=lambda each: (each.data_type, each.name))
        if data_type is None or each.data_type == data_type
    ]
    return pa.Table.from_pylist(rows, schema=XDBC_TYPE_INFO)


def type_name(kind: pa.DataType) -> str:
    """The engine's name of a column's type."""
    for matches, name in _NAMES:
        if matches(kind):
            return name
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE" if kind.tz else "TIMESTAMP"
    if pa.types.is_list(kind):
        return f"{type_name(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({type_name(kind.key_type)}, {type_name(kind.item_type)})"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{field.name} {type_name(field.type)}' for field in kind)})"
    return str(kind).upper()
