"""The goodput simulator: faults, calibrations, accounts."""
