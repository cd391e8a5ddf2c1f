"""Live processes on one machine: what a cell must stand, shown on a whole one."""
