"""A report that is kept up to date while the journals grow.

Spark's Python workers import :mod:`.tail` from here, so nothing is imported in this file.
"""
