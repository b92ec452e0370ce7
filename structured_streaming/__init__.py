"""The Spark side: the reput job and SQL over its tables. Start reading at `reput.py`."""
