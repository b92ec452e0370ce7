"""SQL over the lake by an embedded engine, DuckDB: without Spark, without a JVM. Start reading at `engine.py`."""
