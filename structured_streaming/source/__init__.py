"""The Python data source `lakebroker`: commit logs as streams and batches of Spark."""
