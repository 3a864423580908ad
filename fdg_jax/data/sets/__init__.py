"""One file, one data set: a file put here is found by its name, nothing else needs to be edited."""
