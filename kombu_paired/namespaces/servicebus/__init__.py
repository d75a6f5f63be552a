"""The old name of :mod:`kombu_paired.brokers.servicebus`: the import path of its transport goes on working."""
