"""The deployables of a cell, one folder each, and `runtime`, which they share. Deployables never import each other."""
