"""The broker's own remoting port."""
