"""The Python data source `lakebroker`: commit logs as streams and batches of Spark."""

from structured_streaming.without_pandas import leave_pandas_out_of_workers

leave_pandas_out_of_workers()  # before any array is made: what Spark has a worker run begins with an import of this package
