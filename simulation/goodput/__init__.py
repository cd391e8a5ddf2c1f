"""Goodput of large training jobs in a hostile fleet: a model of faults, and the real planner and leader that answer it.

Pure and seeded: the same world and seed give the same numbers. It never claims to run what it only models; each file
says which of the two it does.
"""
