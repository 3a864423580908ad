"""Arms that are tuned by grids of one size on held-out examples, and then trained with several seeds and compared."""
