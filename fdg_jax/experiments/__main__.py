"""`python -m fdg_jax.experiments` lists the commands, as `python -m fdg_jax` does."""

import sys

from fdg_jax.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
