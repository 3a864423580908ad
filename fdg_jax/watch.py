"""The retired command `python -m fdg_jax.watch`: it tells users of earlier versions how to follow a run now."""

import sys

if __name__ == "__main__":
    print("error: fdg_jax.watch is gone: the run's own output, TensorBoard and --track NAME show it.", file=sys.stderr)
    sys.exit(2)
