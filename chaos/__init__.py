"""Scenarios, planted bugs, and the runners that play them: simulated, or on live processes."""
