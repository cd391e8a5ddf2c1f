"""Adapters: each translates one port to one technology and decides nothing. Only wiring names them."""
