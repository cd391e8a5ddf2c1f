"""Tests of the gateway: its core with in-memory topics and the real leader, its servicers over real gRPC and SQLite."""
