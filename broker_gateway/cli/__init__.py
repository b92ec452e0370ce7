"""The command line `lakebroker`."""
