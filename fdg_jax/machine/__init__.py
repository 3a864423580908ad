"""What the code runs on: the processor, the terminal, the settings of JAX, and the parts of JAX that may change."""
