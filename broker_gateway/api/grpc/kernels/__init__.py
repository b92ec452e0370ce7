"""Compiled code between protobuf bytes and columns of the log (numba)."""
