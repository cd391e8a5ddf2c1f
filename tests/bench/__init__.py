"""Tests of the benchmarks' frame, and of those that take no time."""
