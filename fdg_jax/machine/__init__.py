"""What the code runs on: processor, memory pages, terminal, settings of JAX, and the internals of JAX that we use."""
