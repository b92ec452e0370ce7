"""Where the bytes of a lake are kept."""
