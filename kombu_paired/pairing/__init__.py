"""The pairing of a primary with a secondary namespace: the whole send path."""

from kombu_paired.pairing.pairing import Pairing
from kombu_paired.process import inherit, shared

__all__ = ("Pairing", "inherit", "shared")
