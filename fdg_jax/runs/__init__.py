"""The run directory: the options of a run, its files, its lock, its checkpoints, and how they are read again."""
