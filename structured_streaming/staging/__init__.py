"""On executors: rows as files of the tables, and manifests of them. Nothing is in a table yet."""
