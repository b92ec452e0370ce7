"""Prints the FileDescriptorProtos that the official client carries, as JSON: {file name: base64}.

Run by the client's interpreter (`lakebroker_testing/official_client.py` makes it). The client compiled the files without their folder
(`definition.proto`, not `apache/rocketmq/v2/definition.proto`); the package inside is the public one.
"""

from __future__ import annotations

import base64
import json
import sys

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2


def main() -> None:
    files = {}
    for module in (definition_pb2, service_pb2, admin_pb2):
        proto = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        files[proto.name] = base64.b64encode(proto.SerializeToString()).decode("ascii")
    json.dump(files, sys.stdout)


if __name__ == "__main__":
    main()
