"""The plan: which waiting job runs where, and why the others wait. A pure function of (state, now, policy).

Reads the fold, never changes it; no clock, randomness or I/O is imported here. Integers only, ties broken by a total
order, so the same state at the same time gives the same plan. What is kept between calls is an index, rebuilt at will.
"""
