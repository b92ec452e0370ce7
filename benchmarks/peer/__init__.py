"""Moved; imports from here go soon."""
