"""Taking over the store of a real broker, and handing ours back."""
