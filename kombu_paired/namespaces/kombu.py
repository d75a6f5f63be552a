"""The old name of :mod:`kombu_paired.brokers.kombu`; it goes on working."""

from kombu_paired.brokers.kombu import *  # noqa: F403
