"""What everything runs on: turns of the event loop, scheduled tasks, clocks, shares, files, ports, logging."""
