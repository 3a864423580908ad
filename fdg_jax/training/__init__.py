"""The training application: from a command line to a trained network, one session at a time."""
