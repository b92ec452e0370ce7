"""The broker process. Start reading at `app/startup.py` and `app/broker.py`."""
