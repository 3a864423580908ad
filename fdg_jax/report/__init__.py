"""What a person looks at when a run has ended: one page and its curves, made from the files of a run directory."""
