"""The training application: it turns a command line into a trained network, in one session or several."""
