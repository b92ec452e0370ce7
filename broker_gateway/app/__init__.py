"""The process: the broker put together, its start and stop, several of them under a supervisor, what others plug in."""
