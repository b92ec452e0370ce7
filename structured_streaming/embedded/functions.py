"""Functions and system views of DuckDB that statements may use. What is not listed is refused: a later DuckDB has more.

| refused | why |
|---|---|
| `json_serialize_plan` | plans any SQL, in the database that has the tables: `delta_scan` in it reads other folders, and opens connections |
| `json_deserialize_sql` | takes what it gets for a tree of the parser's own |
| `current_setting`, `getvariable`, `pg_settings`, `duckdb_logs`, … | what the server's machine is like |
| `write_log`, `write_blob`, `nextval` | write |
| `sleep_ms`, `pg_sleep` | take a place among the statements for nothing |
| `finalize`, `combine`, `variant_bytes_to_variant`, `__internal_…`, … | take bytes for states of the engine |
| `json_structure`, `json_group_structure`, `json_contains`, `json_merge_patch`, type VARIANT and its functions | go down into a JSON value by calls within calls: one that is nested 100,000 deep, such as the body of a message, ends the process |
| `json_transform`, `from_json` with a structure that is no text, or is nested more than 100 deep | go down into it in the same way |
| table functions that are not listed | read files, run SQL, change settings |
"""

from __future__ import annotations

from structured_streaming import latency_functions

_OPERATORS = """
    !__postfix !~~ !~~* % & && * ** + - ->> / // <-> << <=> <@ >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
"""
_AGGREGATES = """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last
    arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and
    bool_or corr count count_if count_star countif covar_pop covar_samp cume_dist dense_rank entropy favg fill first
    first_value fsum group_concat histogram histogram_exact kahan_sum kurtosis kurtosis_pop lag last last_value lead
    list listagg mad max max_by mean median min min_by mode nth_value ntile percent_rank product quantile quantile_cont
    quantile_disc rank rank_dense regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy reservoir_quantile row_number sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan var_pop
    var_samp variance
"""
_OTHERS = """
    abs acos acosh add age aggregate ago alias apply array_aggr array_aggregate array_append array_apply array_cat
    array_concat array_contains array_cosine_distance array_cosine_similarity array_cross_product array_distance
    array_distinct array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any
    array_indexof array_inner_product array_intersect array_length array_negative_dot_product
    array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back
    array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice array_sort
    array_to_json array_to_string array_to_string_comma_default array_transform array_unique array_value array_where
    array_zip ascii asin asinh atan atan2 atanh bar base64 bin bit_count bit_length bit_position bitstring
    can_cast_implicitly cardinality cast_to_type cbrt ceil ceiling century char_length character_length chr
    col_description concat concat_ws constant_or_null contains cos cosh cot create_sort_key current_catalog
    current_connection_id current_database current_date current_localtime current_localtimestamp current_query
    current_query_id current_role current_schema current_schemas current_transaction_id current_user damerau_levenshtein
    date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
    dayofweek dayofyear days_in_month decade decode degrees divide editdist3 element_at encode ends_with enum_code
    enum_first enum_last enum_range enum_range_boundary epoch epoch_ms epoch_ns epoch_us equi_width_bins era error even
    exp factorial fdiv filter flatten floor fmod format formatReadableDecimalSize formatReadableSize format_bytes
    format_pg_type format_type from_base64 from_binary from_hex from_json from_json_strict gamma gcd gen_random_uuid
    generate_series generate_subscripts geomean geometric_mean get_bit get_current_time get_current_timestamp get_type
    grade_up greatest greatest_common_divisor hamming has_any_column_privilege has_column_privilege
    has_database_privilege has_foreign_data_wrapper_privilege has_function_privilege has_language_privilege
    has_schema_privilege has_sequence_privilege has_server_privilege has_table_privilege has_tablespace_privilege hash
    hex hour icu_sort_key ilike_escape in_search_path inet_client_addr inet_client_port inet_server_addr
    inet_server_port instr is_histogram_other_bin isfinite isinf isnan isodow isoyear jaccard jaro_similarity
    jaro_winkler_similarity json json_array json_array_length json_exists json_extract json_extract_path
    json_extract_path_text json_extract_string json_group_array json_group_object json_keys
    json_object json_pretty json_quote json_serialize_sql json_transform json_transform_strict json_type
    json_valid json_value julian last_day lcase lcm least least_common_multiple left left_grapheme len length
    length_grapheme levenshtein lgamma like_escape list_aggr list_aggregate list_any_value list_append list_apply
    list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat
    list_concat list_contains list_cosine_distance list_cosine_similarity list_count list_distance list_distinct
    list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all
    list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop list_last
    list_mad list_max list_median list_min list_mode list_negative_dot_product list_negative_inner_product list_pack
    list_position list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_sem
    list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform
    list_unique list_value list_var_pop list_var_samp list_where list_zip ln log log10 log2 lower lpad ltrim make_date
    make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz map map_concat map_contains
    map_contains_entry map_contains_value map_entries map_extract map_extract_value map_from_entries map_keys
    map_to_pg_oid map_values md5 md5_number md5_number_lower md5_number_upper microsecond millennium millisecond minute
    mismatches mod month monthname multiply nanosecond nextafter nfc_normalize normalized_interval not_ilike_escape
    not_like_escape now nullif obj_description octet_length ord parse_dirname parse_dirpath
    parse_filename parse_formatted_bytes parse_path pg_collation_is_visible pg_conf_load_time pg_conversion_is_visible
    pg_function_is_visible pg_get_constraintdef pg_get_expr pg_get_viewdef pg_has_role pg_is_other_temp_schema
    pg_my_temp_schema pg_opclass_is_visible pg_operator_is_visible pg_opfamily_is_visible pg_postmaster_start_time
    pg_size_pretty pg_table_is_visible pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible
    pg_ts_template_is_visible pg_type_is_visible pg_typeof pi position pow power prefix printf quarter radians random
    range reduce regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
    regexp_split_to_array regexp_split_to_table remap_struct repeat replace replace_type reverse right right_grapheme
    round round_even roundbankers row row_to_json rpad rtrim second session_user set_bit setseed sha1 sha256
    shobj_description sign signbit sin sinh split split_part sqrt st_asbinary st_astext st_aswkb st_aswkt st_crs
    st_geomfromwkb st_intersects_extent st_setcrs starts_with str_split str_split_regex strftime string_split
    string_split_regex string_to_array strip_accents strlen strpos strptime struct_concat struct_contains struct_extract
    struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_pack struct_position struct_update
    struct_values substr substring substring_grapheme subtract suffix switch tan tanh time_bucket timetz_byte_comparable
    timezone timezone_hour timezone_minute to_base to_base64 to_binary to_centuries to_days to_decades to_hex to_hours
    to_json to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp
    to_weeks to_years today transaction_timestamp translate trim trunc try_strptime txid_current typeof ucase unbin
    unhex unicode union_extract union_tag union_value unpivot_list upper url_decode url_encode user uuid
    uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 
    vector_type version wavg week weekday weekofyear weighted_avg xor year yearweek
"""
_OF_THE_BINDER = "grouping grouping_id rollup cube unnest unlist"
"""Which the engine has, and does not list as functions."""
_REFUSED = """
    __internal_compress_integral_ubigint __internal_compress_integral_uinteger __internal_compress_integral_usmallint
    __internal_compress_integral_utinyint __internal_compress_string_hugeint __internal_compress_string_ubigint
    __internal_compress_string_uhugeint __internal_compress_string_uinteger __internal_compress_string_usmallint
    __internal_compress_string_utinyint __internal_decompress_integral_bigint __internal_decompress_integral_hugeint
    __internal_decompress_integral_integer __internal_decompress_integral_smallint __internal_decompress_integral_ubigint
    __internal_decompress_integral_uhugeint __internal_decompress_integral_uinteger
    __internal_decompress_integral_usmallint __internal_decompress_string combine current_setting currval finalize
    get_block_size get_delta_test_expression getenv getvariable json_deserialize_sql json_execute_serialized_sql
    json_contains json_group_structure json_merge_patch json_serialize_plan json_structure make_type nextval parse_delta_filter_logline parse_duckdb_log_message pg_sleep sleep_ms stats
    sum_no_overflow variant_bytes_to_variant variant_extract variant_normalize variant_to_parquet_variant variant_typeof write_blob write_log
"""
INTO_STRUCTURES = frozenset(("from_json", "from_json_strict", "json_transform", "json_transform_strict"))
"""Harmless where the structure that they take last is a text, nested no deeper than `MOST_DEEP`."""
MOST_DEEP = 100
_TABLE_FUNCTIONS = """
    duckdb_columns duckdb_functions duckdb_keywords duckdb_tables duckdb_types duckdb_views generate_series icu_calendar_names
    json_each json_tree pg_timezone_names pragma_show pragma_table_info pragma_version range repeat repeat_row summary unnest
"""
_VIEWS = """
    character_sets check_constraints columns constraint_column_usage constraint_table_usage duckdb_columns duckdb_constraints
    duckdb_databases duckdb_indexes duckdb_schemas duckdb_tables duckdb_types duckdb_views key_column_usage pg_am pg_attrdef
    pg_attribute pg_class pg_collation pg_constraint pg_database pg_depend pg_description pg_enum pg_index pg_indexes
    pg_namespace pg_proc pg_sequence pg_sequences pg_tables pg_tablespace pg_type pg_views pragma_database_list
    referential_constraints schemata sqlite_master sqlite_schema sqlite_temp_master sqlite_temp_schema table_constraints tables
    views
"""
_COLLATIONS = "icu_collate_"
OF_PLACES = frozenset(("duckdb_databases", "pragma_database_list"))
"""System views that tell where a database's files are: harmless only in a database that has none."""

FUNCTIONS = frozenset(f"{_OPERATORS} {_AGGREGATES} {_OTHERS} {_OF_THE_BINDER}".lower().split()) | {
    each.name for each in latency_functions.FUNCTIONS
}
TABLE_FUNCTIONS = frozenset(_TABLE_FUNCTIONS.split())
VIEWS = frozenset(_VIEWS.split())
REFUSED = frozenset(_REFUSED.split())
"""Functions that were looked at. Any other one that is not listed is refused as well, once the engine says that it has it."""
REFUSED_VIEWS = frozenset(("duckdb_logs", "pg_prepared_statements", "pg_settings"))


def is_harmless(name: str) -> bool:
    """Of a function that is no table function."""
    return name.lower() in FUNCTIONS or name.lower().startswith(_COLLATIONS)
