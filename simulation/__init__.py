"""A whole cell in one process, one seed, virtual time: the real cores over simulated logs, networks, disks and nodes.

The same seed gives the same history, which is checked. Nothing here imports an adapter, a real clock or a socket.
"""
