"""The battle: seeded random faults on real brokers, and a judge who believes only an independent ledger.

``python -m tests.battle --help`` says how it is run, ``docs/testing.md`` what it promises. The rooms:

========== =================================================================================
plan       what will happen in an episode, made from its seed                           pure
ledger     the facts: who writes them down, and how they are read again
rules      what may explain that a message ran twice, each with the evidence it demands  pure
judge      the verdict on the facts                                                     pure
arena      the brokers of each pair, and the ways to them
actors     producers and workers, seen from outside
faults     how each fault is done and undone
producer   the program of a producer; ``app`` is the application of both
episode    one episode, from clean brokers to the verdict
========== =================================================================================
"""
