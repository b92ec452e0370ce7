"""`grpc.reflection.v1alpha.ServerReflection`: what the gateway serves, for grpcurl and its like."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2 as pb

from broker_gateway.transport.context import CallContext
from lakebroker_pb.pool import POOL

_NOT_FOUND, _UNIMPLEMENTED = 5, 12


class ReflectionService:
    """Answers from the descriptors that the process holds; extensions, which proto3 has none of, aside."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted(services)
        self._pools = (POOL, descriptor_pool.Default())  # our services; those of health and reflection

    async def ServerReflectionInfo(
        self, requests: AsyncIterator[pb.ServerReflectionRequest], context: CallContext
    ) -> AsyncIterator[pb.ServerReflectionResponse]:
        async for request in requests:
            yield self._answer(request)

    def _answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        try:
            if kind == "list_services":
                response.list_services_response.service.extend(
                    pb.ServiceResponse(name=name) for name in self._services
                )
            elif kind == "file_by_filename":
                name = request.file_by_filename
                self._put(response, self._found(lambda pool: pool.FindFileByName(name)))
            elif kind == "file_containing_symbol":
                symbol = request.file_containing_symbol
                self._put(response, self._found(lambda pool: pool.FindFileContainingSymbol(symbol)))
            else:
                response.error_response.error_code = _UNIMPLEMENTED
                response.error_response.error_message = f"{kind or 'an empty request'} is not answered"
        except KeyError:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = "no such file or symbol"
        return response

    def _found(self, look: Callable[[DescriptorPool], FileDescriptor]) -> FileDescriptor:
        """The first pool's that has it. Raises KeyError."""
        *before, last = self._pools
        for pool in before:
            with contextlib.suppress(KeyError):
                return look(pool)
        return look(last)

    @staticmethod
    def _put(response: pb.ServerReflectionResponse, file: FileDescriptor) -> None:
        """The file and all it imports, each once."""
        seen: dict[str, bytes] = {}
        waiting = [file]
        while waiting:
            found = waiting.pop()
            if found.name not in seen:
                seen[found.name] = found.serialized_pb
                waiting.extend(found.dependencies)
        response.file_descriptor_response.file_descriptor_proto.extend(seen.values())
