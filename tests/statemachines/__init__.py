"""Tests of the fold: lifecycles, cluster, invariants, histories, golden logs."""
