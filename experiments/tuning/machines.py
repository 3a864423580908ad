"""What a page says where some of its runs were made on another kind of machine than most."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness import markdown
from experiments.harness.run_table import Lines
from experiments.tuning.arms import Arm, Part, on_gpu

BEFORE_IT = {"XLA_FLAGS": "xla_flags", "JAX_DEFAULT_MATMUL_PRECISION": "matmul_precision"}


def several(parts: Sequence[Part], lines: Lines) -> str:
    """How many runs were made on which kind of machine, and which on the rarer ones, in a paragraph; "" if all are of
    one kind."""
    counts = Counter(map(kind, lines.values())).most_common()
    if len(counts) < 2:
        return ""
    (usual, _), *others = counts
    made = ", ".join(f"{n} on {other}" for other, n in others)
    where = "; ".join(said for part in parts if (said := elsewhere(part, lines, usual)))
    return f"**Several kinds of machine.** Of {len(lines)} runs {made}, the others on {usual}. Made elsewhere: {where}."


def kind(line: Mapping[str, Any]) -> str:
    """The processor, or the GPU, and JAX's version."""
    hardware = line["hardware"]
    name = ", ".join(dict.fromkeys(hardware["devices"])) if on_gpu(line) else hardware.get("processor", "a CPU")
    return f"{name} with JAX {line['versions']['jax']}"


def elsewhere(part: Part, lines: Lines, usual: str) -> str:
    """Which runs of a part were not made on the usual kind of machine; "" if none."""

    def strange(line: Mapping[str, Any] | None) -> bool:
        return line is not None and kind(line) != usual

    made: dict[str, list[Arm]] = {}
    for arm in part.arms:
        if any(strange(lines.get(run.name)) for run in part.grid(arm)):
            made.setdefault("tuning", []).append(arm)
        if seeds := [str(seed) for seed, line in part.finished(lines, arm).items() if strange(line)]:
            made.setdefault(f"final runs, {'seeds' if seeds[1:] else 'seed'} {', '.join(seeds)}", []).append(arm)
    named = part.title if "K =" in part.title else f"{part.title}, K = {part.shared['K']}"
    told = (f"{named}, {what}: {' / '.join(arm.label for arm in arms)}" for what, arms in made.items())
    return "; ".join(told)


def before_a_command(lines: Lines) -> str:
    """What stands before the commands of runs that were made on a GPU; "" if none was."""
    made = [line["hardware"] for line in lines.values() if on_gpu(line)]
    ways = [" ".join(f"{name}={each[key]}" for name, key in BEFORE_IT.items() if each.get(key)) for each in made]
    return f"Before a command on a GPU: `{markdown.either(ways)}`." if ways else ""
