"""Data sets of text: each file here gives the files that a `fdg_jax.data.text.Text` is read from."""
