"""Measurements of speed, each a module that prints a table and, with --json, one JSON object a row.

A module's name is the benchmark's name and its docstring's first line what the list says of it; names that
begin with an underscore are help for the others. `python -m benchmarks` lists them.
"""
