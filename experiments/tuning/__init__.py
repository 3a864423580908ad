"""Arms that are tuned on held-out examples with grids of one size, then trained with several seeds and compared."""
