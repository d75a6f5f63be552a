"""The old name of :mod:`kombu_paired.brokers.servicebus.transport`; it goes on working."""

from kombu_paired.brokers.servicebus.transport import *  # noqa: F403
