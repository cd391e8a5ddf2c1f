"""Tests of what every service stands on."""
