"""What every table's page needs: a Markdown table, and a sentence that says where the runs were made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.harness.run_table import Lines, Run

REPEAT = (
    "**To repeat** a row to its last digit, with the same commit, versions and processor, pin its command to one core "
    "(`taskset -c 0`), as `run --jobs 2` does: more threads sum in another order, and the results drift apart. The "
    "name of a processor is not enough: two machines that both call themselves AMD EPYC rounded differently."
)
LIBRARIES = {"python": "Python", "jax": "JAX", "flax": "Flax", "optax": "Optax"}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Columns are not padded, so that a new row changes one line only."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines)


def progress(lines: Lines, parts: Mapping[str, Sequence[Run]]) -> str:
    """How many runs are finished, of all and of each part. parts: its runs by what they are called."""
    found = {what: sum(run.name in lines for run in runs) for what, runs in parts.items()}
    done, total = sum(found.values()), sum(map(len, parts.values()))
    each = "; ".join(f"{what}: {n} of {len(parts[what])}" for what, n in found.items())
    return f"**How much has run:** {done} of {total} runs {'is' if done == 1 else 'are'} finished. {each}."


def origin(lines: Lines) -> str:
    """Versions, hardware and commits of the results; all of them, where they differ."""
    if not lines:
        return "Nothing has been run yet."
    versions = ", ".join(
        f"{name} {either(line['versions'].get(key) for line in lines.values())}" for key, name in LIBRARIES.items()
    )
    hardware = either(machine(line["hardware"]) for line in lines.values())
    commits = either(short(commit) for line in lines.values() for commit in line["git_commits"])
    return f"Run with {versions} on {hardware}; commit {commits}."


def machine(hardware: Mapping[str, Any]) -> str:
    """One device (cpu:0) of a machine with 2 cores, 1 used (Some Processor, Linux-...).

    It leaves out what was not recorded.
    """
    devices, cores = list(dict.fromkeys(hardware["devices"])), hardware["cpus"]
    count = "one device" if len(devices) == 1 else f"{len(devices)} devices"
    used = f", {hardware['usable_cores']} used" if hardware.get("usable_cores", cores) != cores else ""
    kind = ", ".join(hardware[name] for name in ("processor", "platform") if hardware.get(name))
    where = f"a machine with {cores} cores{used} ({kind})"
    return f"{count} ({', '.join(devices)}) of {where}"


def short(commit: str | None) -> str:
    """The first characters of a commit, with -dirty; `unknown` if there was no git."""
    if not commit:
        return "unknown"
    return f"`{commit[:10]}{'-dirty' if commit.endswith('-dirty') else ''}`"


def either(values: Iterable[Any]) -> str:
    return " or ".join(dict.fromkeys(map(str, values)))
