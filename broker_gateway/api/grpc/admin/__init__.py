"""Administration over gRPC: `apache.rocketmq.v2.Admin`, a file for each kind of call, and our own `AdminService`."""
