"""The tables of a report, one module for each, from the events of :mod:`kombu_paired.pipeline.reading`."""
