"""Tests, laid out as the code is; contracts/ runs one suite a port on every adapter."""
