"""Bytes: what goes over a wire, and what it means. Nothing here knows what a queue is."""
