"""One suite a port, run on every adapter: a subclass gives the fixture that opens it. Suites never name an adapter."""
