"""Bodies of remoting commands as plain values."""
