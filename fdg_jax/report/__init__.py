"""Reports: the page of a run with its curves, and the comparison of runs."""
