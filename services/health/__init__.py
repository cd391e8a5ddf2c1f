"""Health: judges nodes, jobs, devices and NICs by what they say and by their silence. Verdicts are hints to the leader."""
