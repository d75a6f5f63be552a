"""The pipeline: from the journals of a fleet to tables of what an outage did, a page for people, and money.

Nearly all of it runs on Spark, which is imported where it is used. Of the rest of the package it knows the journal's
format alone, and nothing of a pairing. From the ground up:

============  ==============================================================================================
the ground    ``session`` is Spark, ``jobs`` has it do things side by side, ``schema`` is the journal's format as
              Spark reads it, ``parquet`` writes tables.
              ``size`` tells what a small report is, and ``archive`` has Java start sooner. These two without Spark
``costs``     ``charges`` counts operations, ``prices`` turns them into money. Pure
``reading``   finds journals and reads events; what is none is counted and kept
``tables``    ``messages``, ``outages``, ``cost``, ``what_if`` (with ``replay``, which ``few`` does in
              memory, and ``choice``), ``quality`` and ``service`` make one each
``page``      ``facts`` sums tables up, ``html`` and what it is made of draw ``report.html``
``report``    makes all tables and the page, once
``live``      ``watch`` makes them over and over while journals grow: ``folders``, ``tail``, ``store``
============  ==============================================================================================
"""
