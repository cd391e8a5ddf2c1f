"""Benchmarks: `python -m bench list`, `python -m bench NAME`. One module a benchmark, found by its file name.

A benchmark measures the code as it is; it never changes or imitates it. Data is read from the directory in TIDEMILL_DATA.
"""
