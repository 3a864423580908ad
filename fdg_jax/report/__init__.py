"""What a person looks at: the page of a run, and its curves."""
