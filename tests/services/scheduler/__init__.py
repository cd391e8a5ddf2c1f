"""Rules of the leader."""
