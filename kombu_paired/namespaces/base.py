"""The old name of :mod:`kombu_paired.brokers.roles`; it goes on working."""

from kombu_paired.brokers.roles import *  # noqa: F403
