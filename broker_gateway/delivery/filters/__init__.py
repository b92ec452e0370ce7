"""Which messages a consumer wants: a file for each kind of expression."""
