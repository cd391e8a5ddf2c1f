"""Rules of `tidemilld up`."""
