"""Tests of the health processor: the detector on virtual time, and the loop and process around it."""
