"""The pairing of a primary with a secondary namespace: the whole send path."""

from kombu_paired.pairing.pairing import Pairing, inherit, shared

__all__ = ("Pairing", "inherit", "shared")
