"""A run as it goes on, in a terminal or a browser: read from the files of its directory, which is never written to."""
