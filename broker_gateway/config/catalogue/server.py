"""RocketMQ 5.5.0's options of the remoting server (`NettyServerConfig`)."""

from __future__ import annotations

from broker_gateway.config.catalogue import verdicts as v
from broker_gateway.config.catalogue.row import Kind, Row

ROWS = (
    Row("bindAddress", Kind.TEXT, "0.0.0.0", v.EFFECTIVE),
    Row("listenPort", Kind.INT, "10911", v.EFFECTIVE),
    Row("serverWorkerThreads", Kind.INT, "8", v.THREADS),
    Row("serverCallbackExecutorThreads", Kind.INT, "0", v.THREADS),
    Row("serverSelectorThreads", Kind.INT, "3", v.THREADS),
    Row("serverOnewaySemaphoreValue", Kind.INT, "256", v.REMOTING),
    Row("serverAsyncSemaphoreValue", Kind.INT, "64", v.REMOTING),
    Row("serverChannelMaxIdleTimeSeconds", Kind.INT, "120", v.EFFECTIVE),
    Row("serverSocketSndBufSize", Kind.INT, "0", v.BUFFERS),
    Row("serverSocketRcvBufSize", Kind.INT, "0", v.BUFFERS),
    Row("writeBufferHighWaterMark", Kind.INT, "0", v.BUFFERS),
    Row("writeBufferLowWaterMark", Kind.INT, "0", v.BUFFERS),
    Row("serverSocketBacklog", Kind.INT, "1024", v.REMOTING),
    Row("serverNettyWorkerGroupEnable", Kind.BOOL, "true", v.THREADS),
    Row("serverPooledByteBufAllocatorEnable", Kind.BOOL, "true", v.BUFFERS),
    Row("enableShutdownGracefully", Kind.BOOL, "false", v.REMOTING),
    Row("shutdownWaitTimeSeconds", Kind.INT, "30", v.REMOTING),
    Row("useEpollNativeSelector", Kind.BOOL, "false", v.THREADS),
)
