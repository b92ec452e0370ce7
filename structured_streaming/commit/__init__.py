"""On the driver: how the manifests of a batch become versions of the tables."""
