"""How a micro-batch becomes Delta commits: executors stage files, the driver commits them."""
