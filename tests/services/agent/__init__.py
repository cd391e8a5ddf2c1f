"""Tests of the agent: its rules on virtual time, its shell and its executor on real processes."""
