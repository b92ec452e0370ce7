"""How a batch of the reput becomes commits. `base.py` says what a sink owes; `delta.py` is the one built."""
