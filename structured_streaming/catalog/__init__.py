"""Lakes whose tables Spark's own writer commits: in a schema of a catalog, or in a folder."""
