"""The queue index: entries of each queue, in runs that are in memory first and files then."""
