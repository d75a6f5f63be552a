"""The old name of :mod:`kombu_paired.brokers`: import paths of its modules that others may have go on working."""
