"""What a page says where some of its runs were made on another kind of machine than most."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness import markdown
from experiments.harness.run_table import Lines
from experiments.tuning.arms import Part, on_gpu

ENVIRONMENT = {"XLA_FLAGS": "xla_flags", "JAX_DEFAULT_MATMUL_PRECISION": "matmul_precision"}


def several(parts: Sequence[Part], lines: Lines) -> str:
    """Which runs were made on rarer kinds of machine than the most frequent one, in a paragraph; "" if all are of one
    kind."""
    counts = Counter(map(kind, lines.values())).most_common()
    if len(counts) < 2:
        return ""
    (usual, most), *others = counts
    told = [f"**Several kinds of machine.** Of {len(lines)} runs {most} were made on {usual}"]
    for other, n in others:
        where = "; ".join(said for part in parts if (said := made_on(other, part, lines)))
        told.append(f"{n} on {other}: {where}")
    return ". ".join(told) + "."


def paragraph(parts: Sequence[Part], lines: Lines, changes: str, before: str) -> str:
    """`several`, what follows from it, and what stands before a command; "" if all runs are of one kind."""
    told = several(parts, lines)
    return f"{told} {changes} {before}".rstrip() if told else ""


def kind(line: Mapping[str, Any]) -> str:
    """The processor, or the GPU, and JAX's version."""
    hardware = line["hardware"]
    name = ", ".join(dict.fromkeys(hardware["devices"])) if on_gpu(line) else hardware.get("processor", "a CPU")
    return f"{name} with JAX {line['versions']['jax']}"


def made_on(machine: str, part: Part, lines: Lines) -> str:
    """Which runs of a part were made on that kind of machine; "" if none."""

    def there(line: Mapping[str, Any] | None) -> bool:
        return line is not None and kind(line) == machine

    made: dict[str, list[str]] = {}
    for arm in part.arms:
        grid = part.grid(arm)
        if tuned := sum(there(lines.get(run.name)) for run in grid):
            made.setdefault(f"{tuned} of {len(grid)} tuning runs", []).append(arm.label)
        if seeds := [str(seed) for seed, line in part.finished(lines, arm).items() if there(line)]:
            made.setdefault(f"final runs, {'seeds' if seeds[1:] else 'seed'} {', '.join(seeds)}", []).append(arm.label)
    K = f"K = {part.shared['K']}"
    named = part.title if part.title.endswith(K) else f"{part.title}, {K}"
    return "; ".join(f"{named}, {what}: {' / '.join(labels)}" for what, labels in made.items())


def before_a_command(lines: Lines) -> str:
    """What stands before the commands of runs that were made on a GPU; "" if there is nothing."""
    made = [line["hardware"] for line in lines.values() if on_gpu(line)]
    ways = [" ".join(f"{name}={each[key]}" for name, key in ENVIRONMENT.items() if each.get(key)) for each in made]
    return f"Before a command on a GPU: `{markdown.either(filter(None, ways))}`." if any(ways) else ""
