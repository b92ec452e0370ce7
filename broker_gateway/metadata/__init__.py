"""Topics, consumer groups and the names the system keeps for itself."""
