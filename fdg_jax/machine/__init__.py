"""The machine below the code: processor, memory pages, terminal, JAX's settings, and the internals of JAX in use."""
