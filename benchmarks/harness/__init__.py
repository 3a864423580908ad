"""What the benchmarks share: sides, turns, clocks and tables."""
