"""Real Kafka and etcd as plain processes on loopback, built from published packages, no Docker.

For development and tests only: nothing here is authenticated, so it must never listen elsewhere.
"""
