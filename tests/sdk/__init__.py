"""Tests of the distribution `tidemill`: client, command line, training session."""
