"""The gateway's own changes of state as records of the commit log, and how they are read back."""
