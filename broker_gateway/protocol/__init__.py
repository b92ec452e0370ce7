"""RocketMQ's remoting protocol: frames and bodies as plain values, and thin asyncio shells around them."""
