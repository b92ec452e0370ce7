"""The broker process. Start reading at `startup.py` and `broker.py`."""
