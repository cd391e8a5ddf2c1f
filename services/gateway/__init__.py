"""The gateway: the only door to a cell. Authenticates, validates, publishes wishes and reports, and tells what the log says."""
