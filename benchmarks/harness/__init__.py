"""The benchmarks' common code: sides, turns, clocks and tables."""
