"""Options: how a file declares them, what values they take, and how a command line is read. No JAX in this room."""
