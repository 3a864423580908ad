"""The retired command `python -m fdg_jax.watch`: it tells users of earlier versions how to follow a run now."""

import sys

if __name__ == "__main__":
    print("error: fdg_jax.watch was removed: a run's output, TensorBoard and --track NAME show a run.", file=sys.stderr)
    sys.exit(2)
