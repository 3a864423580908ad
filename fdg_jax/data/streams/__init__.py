"""Data sets that do not fit into memory, one file each. A new file is found by its name."""
