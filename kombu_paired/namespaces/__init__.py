"""Namespaces: brokers as a pairing sees them."""
