"""Rules of the plan."""
