"""Data sets in memory, one file each. A new file is found by its name; nothing else needs to be edited."""
