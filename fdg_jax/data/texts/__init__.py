"""Data sets of text, one file each: it names the files from which a `fdg_jax.data.text.Text` is read."""
