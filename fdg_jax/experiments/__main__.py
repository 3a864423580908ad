"""`python -m fdg_jax.experiments` is no command: it lists those that there are, as `python -m fdg_jax` does."""

import sys

from fdg_jax.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
