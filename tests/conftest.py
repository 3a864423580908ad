"""Eight emulated CPU devices for every test, asked for before JAX wakes up."""

from fdg_jax.devices import emulate_cpu

emulate_cpu(8)
