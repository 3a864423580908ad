"""One file, one data set that does not fit into memory: a file put here is found by its name."""
