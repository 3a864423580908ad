"""Measurements of speed. Each measurement is a module that prints a table and, with --json, one JSON object per row.

`python -m benchmarks` lists the benchmarks by module name, with the first line of the module's docstring. `harness/`
holds their common code, `peers/` the PyTorch and plain JAX sides, `results/` the tables.
"""
