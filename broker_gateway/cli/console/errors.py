"""What fails."""

from __future__ import annotations


class AskError(Exception):
    """A question has no answer: the message is a sentence for people, without secrets."""
