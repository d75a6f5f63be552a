"""Tests that wait for the clock more than they work: they have a process of their own beside the others."""
