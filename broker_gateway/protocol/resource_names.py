"""Full names of what the public API calls a Resource."""

from __future__ import annotations

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb


def resource_name(resource: pb.Resource) -> str:
    """`namespace%name` where it has a namespace, else its name."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name
