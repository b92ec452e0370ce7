"""The Python data source `lakebroker`: commit logs of brokers as Spark streams and batches."""
