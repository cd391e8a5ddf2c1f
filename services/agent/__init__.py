"""The agent of a node: starts, stops and reports what the cell decided for it. It never decides who runs where."""
