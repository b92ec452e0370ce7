"""Figures of the running broker: metrics, statistics, how far the lake is behind, how late the event loop is."""
