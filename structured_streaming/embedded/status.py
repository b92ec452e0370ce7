"""How the engine's process ended: between it and the program that started it."""

NOT_STOPPED = 3
"""A statement could not be stopped, and whoever asked for it was told."""
FATAL = 4
"""DuckDB met a fatal error, and whoever asked for the statement that it was met in was told."""
FOR_ONE = frozenset((NOT_STOPPED, FATAL))
"""Others may ask again."""
