"""The fold: lifecycles, facts, the cluster and its invariants. Standard library and msgspec only.

Pure by contract: no clock, randomness, I/O, environment or logging is imported here, and nothing that reaches
state depends on the iteration order of a set. Time is ``at_ms`` of the entry being folded.
"""
