"""The commit log on disk: records, segments, appends, flushes, recovery, retention, and whose the folders are."""
