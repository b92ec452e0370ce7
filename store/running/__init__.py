"""The log of a real broker that goes on running: read beside it, and nothing written into its store."""
