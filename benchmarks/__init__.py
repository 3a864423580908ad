"""Measurements of speed, each a module that prints a table and, with --json, one JSON object a row.

`python -m benchmarks` lists them: a module's name is the benchmark's name, and the first line of its docstring is what
the list says. `harness/` holds what benchmarks share, `peers/` the PyTorch and plain JAX sides, `results/` the tables.
"""
