"""What keeps a lake small and whole: files put together and removed, checks. Needs no Spark."""
