"""The old name of :mod:`kombu_paired.brokers.redis.transport`; it goes on working."""

from kombu_paired.brokers.redis.transport import *  # noqa: F403
