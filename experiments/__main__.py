"""`python -m experiments` lists the tables; `python -m experiments NAME list|run|collect|render` works on one table.

The list says what each table shows and how many of its runs are finished; NAME --help explains the rest.
"""

import sys
from collections.abc import Sequence

import experiments
from experiments.harness import result_files, run_table, table_command
from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.machine import output


def overview() -> str:
    """Every table with its title."""
    lines, width = [], max(map(len, experiments.names()))
    for name in experiments.names():
        table = experiments.find(name)
        try:
            table = result_files.complete(table, run_table.RESULTS)
            found, runs = len(result_files.read(table, run_table.RESULTS)), len(table.runs)
            done = f"{found} of {runs} runs have results" if runs else "uses the runs of other tables"
        except BadInput as error:
            done = str(error)
        lines.append(f"{name:{width}}  {table.title} ({done})")
    return "\n".join(lines)


@output.forgiving()
def main(arguments: Sequence[str]) -> int:
    """Exit codes as for a table; 2 for a table that does not exist."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{overview()}\n\npython -m experiments NAME list|run|collect|render; NAME --help explains these verbs.")
        return 0
    name, known = arguments[0], experiments.names()
    if name not in known:
        asked = f"{did_you_mean(name, known)} There are {', '.join(known)}."
        print(f"error: there is no table {name!r}.{asked}", file=sys.stderr)
        return 2
    return table_command.main(experiments.find(name), arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
