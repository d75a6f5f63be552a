"""The pipeline: from the journals of a fleet to tables of what an outage did, a page for people, and money.

Everything here but the pure rooms runs on Spark, which is imported where it is used. Of the rest of the package it
knows the journal's format alone, and nothing of a pairing.

====================  ======================================================================================
reading               ``reading`` finds journals and reads events; what is none is counted and kept.
                      ``schema`` is the journal's format as Spark reads it
tables                ``messages``, ``outages``, ``cost_table``, ``what_if`` (with ``replay``) and ``quality`` make one
                      each, ``azure`` the service's side of an outage; ``storing`` writes them
costs                 ``costs`` counts operations, ``prices`` turns them into money. Pure
page                  ``facts`` sums tables up, ``html`` and what it is made of draw ``report.html``
together              ``report`` makes all tables and the page once, in a ``session`` of Spark
live                  ``watch`` makes them over and over while journals grow: ``folders``, ``tail``, ``store``
simulation            journals of any size with a known truth, for demonstrations and tests
====================  ======================================================================================
"""
