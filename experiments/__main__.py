"""`python -m experiments` lists the tables: what each shows and how much of it has been run."""

import sys

import experiments
from experiments import _results
from fdg_jax.errors import BadInput


def main() -> int:
    for name in experiments.names():
        table = experiments.find(name)
        try:
            done = f"{len(_results.read(table, experiments.RESULTS))} of {len(table.runs)} runs have results"
        except BadInput as error:
            done = str(error)
        print(f"{name:16}  {table.summary} ({done})")
    print("\npython -m experiments.TABLE list|run|collect|render; --help explains each.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
