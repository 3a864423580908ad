"""Data sets of text, one module each. A module finds the files from which a `fdg_jax.data.text.Text` is read."""
