"""Options: how a file declares them, what values they take, and how a command line or a file of options is read."""
