"""RocketMQ 5.5.0's options of connections that the broker makes (`NettyClientConfig`)."""

from __future__ import annotations

from broker_gateway.config.catalogue import verdicts as v
from broker_gateway.config.catalogue.row import Kind, Row

ROWS = (
    Row("clientWorkerThreads", Kind.INT, "4", v.THREADS),
    Row("clientCallbackExecutorThreads", Kind.INT, None, v.THREADS),
    Row("clientOnewaySemaphoreValue", Kind.INT, "65535", v.CLIENT),
    Row("clientAsyncSemaphoreValue", Kind.INT, "65535", v.CLIENT),
    Row("connectTimeoutMillis", Kind.INT, "3000", v.EFFECTIVE),
    Row("channelNotActiveInterval", Kind.LONG, "60000", v.CLIENT),
    Row("isScanAvailableNameSrv", Kind.BOOL, "true", v.REGISTRATION),
    Row("clientChannelMaxIdleTimeSeconds", Kind.INT, "120", v.EFFECTIVE),
    Row("clientSocketSndBufSize", Kind.INT, "0", v.BUFFERS),
    Row("clientSocketRcvBufSize", Kind.INT, "0", v.BUFFERS),
    Row("clientPooledByteBufAllocatorEnable", Kind.BOOL, "false", v.BUFFERS),
    Row("clientCloseSocketIfTimeout", Kind.BOOL, "true", v.CLIENT),
    Row("useTLS", Kind.BOOL, "false", v.CLIENT_REFUSED),
    Row("socksProxyConfig", Kind.TEXT, "{}", v.CLIENT_REFUSED),
    Row("writeBufferHighWaterMark", Kind.INT, "0", v.BUFFERS),
    Row("writeBufferLowWaterMark", Kind.INT, "0", v.BUFFERS),
    Row("disableCallbackExecutor", Kind.BOOL, "false", v.THREADS),
    Row("disableNettyWorkerGroup", Kind.BOOL, "false", v.THREADS),
    Row("maxReconnectIntervalTimeSeconds", Kind.LONG, "60", v.CLIENT),
    Row("enableReconnectForGoAway", Kind.BOOL, "true", v.CLIENT),
)
