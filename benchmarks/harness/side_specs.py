"""The sides of a comparison. A side is a way to train, on a number of cores. This module needs no JAX.

A side is written NAME[:option=value]..., for example `fdg`, `fdg:split=5`, `bp:cores=2` or
`fdg:packing=off:xla=--xla_cpu_multi_thread_eigen=false`. NAME is one of PRESETS or a method's name (K workers on K
cores). A side may correct late gradients, and have another optimizer: `fdg:correct=anticipate:prediction=linear`.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fdg_jax import corrections, methods
from fdg_jax.config import FIELDS, OF_CORRECTIONS
from fdg_jax.errors import BadInput
from fdg_jax.machine import huge_pages
from fdg_jax.methods import interface
from fdg_jax.schedule import Schedule

EACH_CORE, JOINED = "benchmarks.harness.ranks.EachCore", "benchmarks.harness.ranks.Joined"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # as in the training command on one core
# The differences from "K workers of that method on K cores".
PRESETS: dict[str, dict[str, Any]] = {
    "bp": {"method": "bp", "K": 1, "cores": 1},
    "bp-two-cores": {"method": "bp", "K": 1, "cores": 2},
    "bp-on-each-core": {"method": "bp", "K": 1, "cores": 2, "worker": EACH_CORE},
    "delay-line": {"method": "fdg", "engine": "delay-line", "cores": 1},
}
# name: (the values, if only some are allowed; what they mean)
OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "K": ((), "number of stages"),
    "cores": ((), "cores the process is pinned to"),
    "engine": (("pipeline", "delay-line"), "pipeline or delay-line"),
    "split": ((), "paper, even, balanced, measured or block numbers"),
    "copies": ((), "independent processes that train at the same time; on a CPU each on a core"),
    "processes": (("one", "each"), "one, or each: every stage in a process of its own, on a core of its own"),
    "packing": (("on", "off"), "on, or off: pass every small array of a stage to its programs separately"),
    "layers": (("cured", "plain"), "cured (fdg_jax's paths for a device of one core) or plain (XLA's own)"),
    "hugepages": (("on", "only", "off"), "on (glibc keeps freed memory), only (it returns it at every step), or off"),
    "xla": ((), "XLA flags"),
    "dtype": (("float32", "bfloat16"), "float32 or bfloat16"),
    "precision": (("default", "highest"), "float32 products: default (JAX's; may be TF32 on a GPU) or highest"),
}
METHODS_OWN = "and the method's own: order=forward-first, accumulate=2, micro_batches=8, aux=linear, conditional=off"
OF_TRAINING = "replicas=2, a correction with its options, an optimizer: correct=anticipate:prediction=linear"


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    name: as given on the command line.
    cores: number of cores to which the side is pinned.
    copies: number of independent processes that train it at the same time.
    processes: "one" for all stages, or "each" for a process per stage.
    device: "cpu", where a core stands in for a device, or "gpu", as JAX finds it.
    xla: flags added to XLA_FLAGS.
    options: the method's.
    training: other options of the training command: a correction with its options, an optimizer.
    worker: the class that trains in its process.
    interpreter: the Python that runs the worker; "": that of this process.
    """

    name: str
    method: str
    K: int
    cores: int
    model: str
    batch_size: int
    engine: str = "pipeline"
    split: str | None = None
    copies: int = 1
    processes: str = "one"
    packing: str = "on"
    layers: str = "cured"
    hugepages: str = "on"
    device: str = "cpu"
    xla: str = ""
    dtype: str = "float32"
    precision: str = "default"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    worker: str = "benchmarks.harness.bench_worker.Trainer"
    interpreter: str = ""


def parse(text: str, common: dict[str, Any], xla: str, split: str) -> Side:
    """Reads a side.

    common: K, model, batch_size, device of all sides. xla, split: the values for sides that name none.
    """
    name, *words = text.split(":")
    preset = PRESETS.get(name) or {"method": methods.find(name).name}
    method = methods.find(preset["method"])
    asked = of_training(words)
    pairs = [option(text, word, method, asked) for word in words]
    own = {key: value for key, value in pairs if key in method.answers_to}
    training = {key: value for key, value in pairs if key in asked and key not in own}
    rest = {key: value for key, value in pairs if key not in own and key not in training}
    values = {**common, "xla": xla, **preset, **rest, "options": own, "training": training}
    if values.get("device") == "gpu":
        values["cores"] = len(cores_available())  # the host's cores are not compared
    values.setdefault("cores", values["K"])
    if values["K"] > 1:
        values.setdefault("split", split)
    side = Side(name=text, **values)
    each, wrong = side.processes == "each", ""
    if each and (side.device != "cpu" or side.engine != "pipeline" or side.K < 2):
        wrong = "processes=each gives every stage of a pipeline a core of a CPU. Use --K 2 or more, engine=pipeline "
        wrong += "and --device cpu"
    elif each and side.split == "measured":
        wrong = "each process would measure the blocks itself and could cut elsewhere. Use split=balanced, or numbers"
    elif side.copies > 1 and side.device == "cpu" and side.cores > 1:
        wrong = "copies on a CPU have a core each, and this side wants several. Use engine=delay-line or bp"
    if wrong:
        raise BadInput(f"side {text}: {wrong}.")
    if side.copies > 1:
        return dataclasses.replace(side, worker=EACH_CORE, cores=max(side.cores, side.copies * (side.device == "cpu")))
    return dataclasses.replace(side, worker=JOINED) if each else side


def words(side: Side) -> tuple[str, ...]:
    """The arguments of Python that start a side's process."""
    return "-m", "benchmarks.harness.serving", json.dumps(dataclasses.asdict(side))


def of_training(words: Sequence[str]) -> tuple[str, ...]:
    """The options of a side's training besides those of the method. They include the options of its corrections.

    words: the side's options as written. Raises BadInput for a correction that does not exist.
    """
    named = {name for word in words if word.startswith("correct=") for name in word.partition("=")[2].split(",")}
    for name in named - {*corrections.names()}:
        corrections.find(name)  # refuses an unknown name; a known one would import JAX here
    own = [name for name, option in OF_CORRECTIONS.items() if named & {*option.by}]
    return ("correct", "optimizer", "replicas", *own, *(("beta",) if "shrink" in named else ()))


def option(side: str, word: str, method: interface.Method, training: Sequence[str]) -> tuple[str, Any]:
    """An option of a side, with its value. training: the result of `of_training`. Raises BadInput."""
    key, equals, value = word.partition("=")
    if equals and key in FIELDS and key not in OPTIONS:
        if by := OF_CORRECTIONS[key].by if key in OF_CORRECTIONS and key not in training else ():
            raise BadInput(f"side {side}: {key} belongs to correction {' or '.join(by)}. Add correct={by[0]}.")
        if key not in (*method.answers_to, *training):
            method.accepted({key: value})  # refuses a wrong value
        # The training command's own checks find all other mistakes.
        return key, typed(side, key, value, FIELDS[key].default, get_args(FIELDS[key].kind))
    if key not in OPTIONS or not equals:
        known = "; ".join([*(f"{name}: {meaning}" for name, (_, meaning) in OPTIONS.items()), METHODS_OWN, OF_TRAINING])
        raise BadInput(f"side {side}: {word!r} is not an option of a side. Write NAME:option=value with {known}.")
    return key, typed(side, key, value, 1 if key in ("K", "cores", "copies") else "", OPTIONS[key][0], least=1)


def typed(side: str, key: str, value: str, like: Any, choices: Sequence[str], least: float = -math.inf) -> Any:
    """The value of an option, converted to the type of `like`. Raises BadInput for values outside of `choices` or below
    `least`."""
    kind = type(like)
    choices = ("on", "off") if kind is bool else choices
    if choices and value not in choices:
        raise BadInput(f"side {side}: {key}={value} is not known. Use {' or '.join(choices)}.")
    try:
        found = value == "on" if kind is bool else kind(value)
    except ValueError:
        found = None
    if found is None or (kind in (int, float) and found < least):
        from_least = "" if least == -math.inf else f" from {least:g} on"
        raise BadInput(f"side {side}: {key}={value} is not a {'whole ' * (kind is int)}number{from_least}.")
    return found


def schedule_of(side: Side) -> Schedule:
    method = methods.find(side.method)
    return method.schedule(side.K, **method.accepted(side.options)[0])


def check(sides: Sequence[Side], cores: int) -> None:
    """Raises BadInput for sides that this machine cannot compare honestly. cores: those this process may use."""
    if len({side.name for side in sides}) < len(sides):
        raise BadInput("a side is named twice. Name it once, or give both different options.")
    for side in sides:
        if side.cores > cores:
            raise BadInput(
                f"side {side.name} (K={side.K}) wants {side.cores} cores, but there are {cores}. With fewer "
                f"cores than workers no speed-up can be claimed. Use --K 1 to {cores}, or a larger machine."
            )


def cores_available() -> list[int]:
    """The cores this process may use, a thread of each physical core first. Raises BadInput if processes cannot be
    pinned."""
    if not hasattr(os, "sched_setaffinity"):
        raise BadInput("this system cannot pin a process to a core (sched_setaffinity). Run it on Linux.")
    seen: set[str] = set()
    rank = {}
    for core in sorted(os.sched_getaffinity(0)):
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings = file.read_text(encoding="utf-8") if file.exists() else str(core)
        rank[core] = siblings in seen  # False before True: second threads of a core come last
        seen.add(siblings)
    return sorted(rank, key=lambda core: (rank[core], core))


def environment(side: Side) -> dict[str, str]:
    """The environment of the side's process: platform, huge pages, XLA flags."""
    # Sides on a GPU share its memory, so none may preallocate most of it.
    platform = {"JAX_PLATFORMS": "cpu"} if side.device == "cpu" else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    wanted = {**os.environ, **platform}
    if side.precision != "default":
        wanted["JAX_DEFAULT_MATMUL_PRECISION"] = side.precision
    flags = " ".join(part for part in (wanted.get("XLA_FLAGS", ""), side.xla) if part)
    if flags:
        wanted["XLA_FLAGS"] = flags
    if side.hugepages == "off":
        wanted.pop(huge_pages.TUNABLES, None)
        return wanted
    started = huge_pages.wanted_environment(wanted) or wanted
    if side.hugepages == "only" and huge_pages.TUNABLES in started:
        started[huge_pages.TUNABLES] = huge_pages.HUGE
    return started
