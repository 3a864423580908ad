"""The list of steps in their order, and the function of each. Code that starts JAX runs in a process of its own."""

import json
import os
import shutil
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import children, report
from benchmarks.harness.children import Child, ChildFailed
from benchmarks.peers import sides as peers
from experiments.gpu.loop import CHECK, ROWS, SPEED, Choices, Line, Step, Workplace, lines_of
from experiments.gpu.settings import DETERMINISTIC, Settings, rows
from experiments.harness import estimate, result_files
from experiments.harness.run_table import DONE, RUNNING, Run, command, state
from fdg_jax.data import cifar
from fdg_jax.errors import BadInput
from fdg_jax.runs.run_files import CHECKPOINTS, SUMMARY, read_json
from fdg_jax.sweep import last_line

# Measured over predicted memory. The prediction is for the moment at which a stage holds most. Stages that share a
# device do not all reach that at once, so a smaller value is right. A device rounds every array up, so its count is
# larger.
LEAST, MOST = 0.8, {"arrays": 1.05, "the device's own count": 1.3}
NOT_DETERMINISTIC, UNTUNED = "--xla_gpu_deterministic_ops=false", "--xla_gpu_autotune_level=0"
WORDS = "--K 2 --method fdg --beta 0.5 --seed 0 --evaluate-every 0 --checkpoint-every 0 --keep 1 --no-tensorboard"
FASTER = 1.05  # the smallest speed-up that counts; smaller ones are within the spread
ROW_SIDE = "delay-line"  # the engine for the rows, where stages share a device
IMAGES = {"digits": 1438, **estimate.IMAGES}
LOCKED_SECONDS = 60.0  # for the last checkpoint of a run whose call was killed
TELL_SECONDS = 30.0


def steps(settings: Settings, choices: Choices) -> list[Step]:
    """All steps in their order: checks, speeds, rows; rows of the cheapest network first. Raises BadInput."""
    checks = [
        Step("devices", CHECK, "devices, memory, versions", devices),
        Step("determinism", CHECK, "the same training twice ends in the same bits", determinism, ("devices",)),
        Step("resume", CHECK, "a run that was stopped and resumed ends in the same bits", resume, ("determinism",)),
        Step("engines", CHECK, "the engines against each other and against plain JAX", engines, ("devices",)),
        Step("memory", CHECK, "memory predicted against memory taken", memory, ("devices",)),
    ]
    checked, (first, *others) = tuple(step.name for step in checks), settings.models

    def speed(model: str, precision: str) -> Step:
        run = partial(speeds, model=model, precision=precision)
        return Step(f"speed-{model}@{precision}", SPEED, f"images/s of {model} in {precision}", run, checked)

    def rows_of(model: str, runs: Sequence[Run]) -> Step:
        needs = (*checked, "row-flags", "together" if model == first else f"speed-{model}@{choices.precision}")
        about, given = f"{len(runs)} runs of {runs[0].flags['epochs']} epochs", (model, runs)
        return Step(
            f"rows-{model}", ROWS, about, lambda at: train(runs, at), needs, lambda at: row_seconds(*given, at),
            lambda at: row_refusal(*given, at), goes_on=True,
        )  # fmt: skip

    wanted = [run for run in rows(settings) if any(fnmatchcase(run.name, pattern) for pattern in choices.rows)]
    if not wanted:
        known = ", ".join(dict.fromkeys(f"'{run.flags['model']}-*'" for run in rows(settings)))
        fact = f"--rows {' '.join(choices.rows)}: no row of {settings.table.name} is called that"
        raise BadInput(f"{fact}. There are {known}.")
    chosen = list(dict.fromkeys(run.flags["model"] for run in wanted))
    ways = [(model, precision) for model in (first, *others) for precision in settings.precisions]
    ways += [(model, choices.precision) for model in chosen if model not in settings.models]  # to know the rows' time
    return [
        *checks,
        speed(first, choices.precision),
        Step("flags", SPEED, f"XLA flags, on the delay line of {first}", flags, checked),
        Step("row-flags", SPEED, "the XLA flags of the rows: the fastest that change no bit", row_flags,
             ("flags", "determinism")),
        Step("together", SPEED, f"how many runs of {first} to train at a time", together, ("row-flags",)),
        Step("host", SPEED, f"microseconds of the host per call, {first}", host, checked),
        *(speed(*way) for way in ways if way != (first, choices.precision)),
        *(rows_of(model, [run for run in wanted if run.flags["model"] == model]) for model in chosen),
    ]  # fmt: skip


def environment(precision: str, *flags: str, compile_anew: bool = False) -> dict[str, str]:
    """The environment of a process: the precision of float32 products, XLA flags, and no preallocation of GPU memory.

    Arguments:
        precision: float32 (products in full precision), tf32 or bfloat16 (JAX's default).
        flags: XLA flags; a later one of the same name wins.
        compile_anew: do not use cached programs.
    """
    found = {name: value for name, value in os.environ.items() if name != "JAX_DEFAULT_MATMUL_PRECISION"}
    found |= {"JAX_DEFAULT_MATMUL_PRECISION": "highest"} if precision == "float32" else {}
    found["XLA_FLAGS"] = joined(found.get("XLA_FLAGS", ""), DETERMINISTIC, *flags)
    return found | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | ({"FDG_JAX_COMPILE_CACHE": "0"} if compile_anew else {})


def joined(*flags: str) -> str:
    """XLA flags as one text. For each name, only the last flag is kept."""
    words = [word for text in flags for word in text.split()]
    return " ".join({word.partition("=")[0]: word for word in words}.values())


def ask(name: str, at: Workplace, **given: Any) -> Any:
    """The answer of `experiments.gpu.on_device NAME`. Raises ChildFailed."""
    words = ("-m", "experiments.gpu.on_device", name, json.dumps(given))
    said = children.run(*words, log=at.folder.place(f"{name}.log"), answers=True, env=environment("float32"))
    return json.loads(said.splitlines()[-1])


# The checks. If one fails, later measurements and trainings mean nothing.


def devices(at: Workplace) -> list[Line]:
    """Checks that JAX sees the accelerator and can compute on it."""
    found = ask("devices", at)
    right = found["platform"] != "cpu" or at.settings.device == "cpu"
    memory = f", {found['memory_bytes'] / 2**30:.1f} GiB" if found["memory_bytes"] else ""
    says = (
        f"{found['devices']} x {found['device']}{memory}; JAX {found['jax']}, jaxlib {found['jaxlib']}, Flax "
        f"{found['flax']}, Python {found['python']}, {found['cores']} cores"
    )
    if not right:
        says = f"JAX finds no accelerator, only {found['device']}. Install a JAX for this GPU, or use --small"
    return [{"passed": right and found["computes"], "says": says, **found}]


def base_flags(at: Workplace) -> str:
    """The XLA flags that the determinism check needed besides the usual one."""
    return at.folder.line("determinism").get("flags", "")


def training(at: Workplace, path: Path, steps: int, *more: str, flags: str = "") -> dict[str, Any]:
    """The arguments for `children.run_all` of a training whose final bits are compared."""
    s = at.settings
    words = ["-m", "fdg_jax.experiments.cifar", "--model", s.check_model, *s.check_words.split(), *WORDS.split()]
    env = environment(at.choices.precision, base_flags(at), flags, compile_anew=s.compile_anew)
    words += ["--steps", str(steps), "--run-dir", str(path), *more]
    return {"words": words, "log": path.with_suffix(".log"), "env": env}


def twice(at: Workplace, flags: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """{kind: summaries of two trainings} for each kind of XLA flags, all trained at the same time. Raises
    ChildFailed."""
    paths = {kind: [at.folder.place(f"{kind}-{i}".replace(" ", "-")) for i in (1, 2)] for kind in flags}
    n = at.settings.check_steps
    children.run_all([training(at, path, n, flags=flags[kind]) for kind, both in paths.items() for path in both])
    return {kind: [read_json(path / SUMMARY) for path in both] for kind, both in paths.items()}


def determinism(at: Workplace) -> list[Line]:
    """Checks that a training repeats its bits. It runs twice, side by side, in processes that compile for themselves,
    with XLA's determinism flag; if the bits differ, again without autotuning. `flags` are the flags that were needed
    besides; all other steps use them. The result without the determinism flag is only reported."""

    def alike(kind: str) -> bool:
        return len({each["final_state_sha256"] for each in found[kind]}) == 1

    kinds = {"as asked": "", "without the flag": NOT_DETERMINISTIC}
    found = twice(at, kinds if at.settings.device == "gpu" else {"as asked": ""})
    used = "as asked"
    if not alike(used) and at.settings.device == "gpu":
        found, used = found | twice(at, {"untuned": UNTUNED}), "untuned"
    same, flags = alike(used), UNTUNED if used == "untuned" else ""
    says = f"{at.settings.check_steps} batches twice with {joined(DETERMINISTIC, flags)}: "
    says += "the same bits" if same else "OTHER BITS"
    if "without the flag" in found:
        says += f"; without it {'the same' if alike('without the flag') else 'others'}"
    hashes = {kind: [each["final_state_sha256"] for each in both] for kind, both in found.items()}
    return [{"passed": same, "says": says, "flags": flags, "state_sha256": hashes[used][0], "hashes": hashes}]


def reference(at: Workplace) -> str:
    """The final hash of the determinism check. Raises ChildFailed if there is none."""
    for line in at.folder.lines("determinism"):
        if "state_sha256" in line:
            return line["state_sha256"]
    raise ChildFailed("the determinism check has no result to compare with")


def resume(at: Workplace) -> list[Line]:
    """Checks that a run that was stopped and resumed in another process ends in the same bits as an uninterrupted
    run."""
    path, n, whole = at.folder.place("resumed"), at.settings.check_steps, reference(at)
    for each in (training(at, path, n // 2), training(at, path, n, "--resume")):
        children.run_all([each])
    found = read_json(path / SUMMARY)["final_state_sha256"]
    says = f"stopped after {n // 2} of {n} batches: {'the same bits' if found == whole else 'OTHER BITS'}"
    return [{"passed": found == whole, "says": says, "state_sha256": found, "without_stop": whole}]


def engines(at: Workplace) -> list[Line]:
    """Checks that the engines train the same weights, and the same as plain JAX."""
    found = ask("engines", at, model="resnet8", K=3, steps=10, batch_size=16)
    most, wrong, bound = max(found["from_oracle"].values()), found["one_update_sooner"], found["bound"]
    close, telling = max(most, found["between_engines"]) <= bound, wrong >= found["needed_ratio"] * bound
    says = (
        f"weights after {found['steps']} batches, of their norm: engines {found['between_engines']:.1e} from each "
        f"other, {most:.1e} from plain JAX; bound {bound:.0e}; gradients one update sooner: {wrong:.1e}"
    )
    if not telling:
        says += f", which is not {found['needed_ratio']:g} times the bound, so this check tells nothing"
    return [{"passed": close and telling, "says": says, **found}]


def memory(at: Workplace) -> list[Line]:
    """Checks that arrays take the memory that the training command predicts."""
    found = ask("memory", at, model=at.settings.check_model, K=2, batch_size=at.settings.batch_size)
    taken = {"arrays": found["live_bytes"], "the device's own count": found["in_use_bytes"]}
    ratios = {name: size / found["predicted_bytes"] for name, size in taken.items() if size is not None}
    each = (f"{name} {ratio:.3f} of it (allowed {LEAST} to {MOST[name]})" for name, ratio in ratios.items())
    shown = {name: f"{found[f'{name}_bytes'] / 1e6:,.1f} MB" if found[f"{name}_bytes"] is not None else "unknown"
             for name in ("predicted", "temporary", "peak")}  # fmt: skip
    says = f"{found['model']}, K={found['K']} on one device: predicted {shown['predicted']}, taken at most: "
    says += ", ".join(each)
    if found["peak_bytes"] is not None:  # this includes compiling and choosing kernels, so it is only reported
        says += f"; with temporary buffers (the largest {shown['temporary']}) {shown['peak']}"
    return [{"passed": all(LEAST <= ratio <= MOST[name] for name, ratio in ratios.items()), "says": says, **found}]


# The speeds, each by a benchmark.


def compare(at: Workplace, sides: Mapping[str, str], model: str, precision: str) -> list[Line]:
    """A line for each side, measured by benchmarks.images_per_second. sides: {name in the lines: side}; the first is
    the baseline. A side that fails has no `ratio`. Raises ChildFailed if the baseline fails."""
    s, file, log = at.settings, at.folder.place("speeds.jsonl"), at.folder.place("speeds.log")
    words = ["--model", model, "--batch-size", str(s.batch_size), "--windows", str(s.windows), "--device", s.device]
    words += ["--seconds", str(s.seconds), "--precision", "highest" if precision == "float32" else "default"]
    words += ["--dtype", "bfloat16" if precision == "bfloat16" else "float32", "--skip-failed", "--json", str(file)]
    words += [f"--xla-flags={joined(DETERMINISTIC, base_flags(at))}", "--sides", *sides.values()]
    plain = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    children.run("-m", "benchmarks.images_per_second", *words, log=log, env=plain)
    measured, lines = {row["side"]: row for row in lines_of(file)}, list[Line]()
    told, base = log.read_text(encoding="utf-8").splitlines(), next(iter(sides))
    for name, side in sides.items():
        about = {"model": model, "precision": precision, "batch_size": s.batch_size, "side": name}
        if (row := measured.get(side)) is None:
            why = next((line for line in told if line.startswith(f"Side {side} is ")), "")
            lines.append(about | {"says": f"{name}: not measured: {why}"})
            continue
        values, ratio = row["images_per_second_windows"], row["ratio"]
        says = f"{name}: {report.spread(values, 0)} images/s, {ratio:.2f} of {base}, n={len(values)}"
        kept = {"images_per_second": report.median(values, 1), "over": base, "ratio": ratio}
        lines.append(about | kept | {"windows": report.rounded(values, 1), "says": says})
    return lines


def speeds(at: Workplace, model: str, precision: str) -> list[Line]:
    """Images per second of one network in one precision: of every engine, and of PyTorch if it has the network."""

    def has_network(side: str) -> bool:
        try:
            return not side.startswith("torch") or bool(peers.network(model))
        except BadInput:
            return False

    return compare(at, {side: side for side in at.settings.sides if has_network(side)}, model, precision)


def flags(at: Workplace) -> list[Line]:
    """XLA flags for many small programs. Each flag needs a process, as XLA reads flags only once. If XLA does not know
    a flag, the process ends, and its line says so."""
    known = {"as it is": "", **{name: flag for name, (flag, _) in at.settings.flags.items()}}
    always = joined(DETERMINISTIC, base_flags(at))
    sides = {name: f"{ROW_SIDE}:xla={joined(always, flag)}" for name, flag in known.items()}
    lines = compare(at, sides, at.settings.models[0], at.choices.precision)
    return [{**line, "flags": known[line["side"]]} for line in lines]


def row_flags(at: Workplace) -> list[Line]:
    """The XLA flags for training the rows: the fastest of those that only change how kernels are launched, if training
    with them ends in the same bits as the determinism check; else none."""
    launch = {name for name, (_, launching) in at.settings.flags.items() if launching}
    found = [line for line in at.folder.lines("flags") if line.get("ratio", 0) >= FASTER and line["side"] in launch]
    tried = list[str]()
    for line in sorted(found, key=lambda line: -line["ratio"]):
        path, name = at.folder.place("flags"), line["side"]
        try:
            children.run_all([training(at, path, at.settings.check_steps, flags=line["flags"])])
        except ChildFailed as error:
            tried.append(f"{name}: {error}")
            continue
        if read_json(path / SUMMARY)["final_state_sha256"] == reference(at):
            says = f"{name} ({line['flags']}): {line['ratio']:.2f} times as fast and the same bits"
            return [{"flags": line["flags"], "tried": tried, "says": says}]
        tried.append(f"{name}: other bits")
    why = "; ".join(tried) or f"none that changes no bit is {FASTER} times as fast"
    return [{"flags": "", "tried": tried, "says": f"none: {why}"}]


def together(at: Workplace) -> list[Line]:
    """How many rows to train at a time, by the images per second of all processes together."""
    model, flag = at.settings.models[0], at.folder.line("row-flags").get("flags", "")
    side = f"{ROW_SIDE}:xla={joined(DETERMINISTIC, base_flags(at), flag)}"
    sides = {str(n): side + f":copies={n}" * (n > 1) for n in at.settings.together}
    lines = compare(at, sides, model, at.choices.precision)
    if failed := [line["says"] for line in lines if "windows" not in line]:
        raise ChildFailed("; ".join(failed))
    medians = {int(line["side"]): statistics.median(line["windows"]) for line in lines}
    best = min(medians)
    for n in sorted(medians):
        best = n if medians[n] >= FASTER * medians[best] else best
    told = ", ".join(f"{line['side']}: {report.spread(line['windows'], 0)}" for line in lines)
    says = f"images/s of all together: {told}; so {best} at a time"
    return [{"model": model, "jobs": best, "images_per_second": {str(n): medians[n] for n in medians}, "says": says}]


def host(at: Workplace) -> list[Line]:
    """Microseconds that the host takes for the calls of a stage (benchmarks.host_cost)."""
    file, log = at.folder.place("host.jsonl"), at.folder.place("host.log")
    words = ["--model", at.settings.models[0], "--K", "2", "--ticks", str(at.settings.host_ticks), "--json", str(file)]
    children.run("-m", "benchmarks.host_cost", *words, log=log, env=environment("float32"))
    says = {
        "stage": "stage k={k} of K={K}: F {F_microseconds:.0f}, B {B_microseconds:.0f}, U {U_microseconds:.0f} "
        "microseconds",
        "tick": "a tick of K={K}: {tick_microseconds:.0f} microseconds of the host",
    }
    return [{**row, "says": says[row["row"]].format_map(row)} for row in lines_of(file) if row["row"] in says]


# The rows of a network: its runs by the training command, several at a time; unfinished ones are resumed.


def row_seconds(model: str, runs: Sequence[Run], at: Workplace) -> float | None:
    """The seconds of a network's rows by its measured speed, without evaluations and compiling. Before the measurement:
    a guess, if any."""
    found, speed = at.folder.line("together"), None
    if found.get("model") == model:
        speed = found["images_per_second"][str(found["jobs"])]
    else:
        lines, first = at.folder.lines(f"speed-{model}@{at.choices.precision}"), at.settings.sides[0]
        speed = next((line["images_per_second"] for line in lines if line["side"] == first and "ratio" in line), None)
    return sum(images_left(run, at) for run in runs) / speed if speed else at.settings.guesses.get(f"rows-{model}")


def images_left(run: Run, at: Workplace) -> float:
    images, now = run.flags.get("train_size") or IMAGES[run.flags["dataset"]], state(run, at.folder.rows)
    return max(0.0, (run.flags["epochs"] - now.epochs) * images) if now.kind != DONE else 0.0


def row_refusal(model: str, runs: Sequence[Run], at: Workplace) -> str:
    seconds = row_seconds(model, runs, at)
    if seconds and seconds > at.choices.hours * 3600:
        took = estimate.duration(seconds)
        return f"it would take about {took}, more than --hours {at.choices.hours:g}: give --hours more"
    return data_missing(at)


def data_missing(at: Workplace) -> str:
    """A sentence on the data that the rows lack; "" if none is missing."""
    try:
        found = at.settings.dataset != "cifar10" or cifar.find("cifar10", at.choices.data_dir)
    except BadInput as error:
        return str(error)
    return "" if found or at.choices.data_dir is None else f"{at.choices.data_dir} holds no CIFAR-10"


def train(runs: Sequence[Run], at: Workplace) -> list[Line]:
    """Trains all unfinished runs. Raises ChildFailed if one fails."""
    going, jobs, told = dict[str, Child](), at.folder.line("together").get("jobs", 1), time.monotonic()
    try:
        wait_for_earlier(runs, at)
        queue = [run for run in runs if state(run, at.folder.rows).kind != DONE]
        print(f"           {len(runs) - len(queue)} of {len(runs)} runs are done, {jobs} at a time", flush=True)
        while queue or going:
            while queue and len(going) < jobs:
                run = queue.pop(0)
                going[run.name] = begin(run, at)
            time.sleep(children.POLL_SECONDS)
            for name in [name for name, child in going.items() if not child.running]:
                tell({name: going[name]})
                ended = going.pop(name)
                if ended.process.returncode:
                    raise ended.failure()
                tidy(runs, at)
                results = at.choices.results or at.folder.path / "collected"
                result_files.collect(at.settings.table, at.folder.rows, results)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                tell(going)
    finally:
        children.end(list(going.values()), at.clock.left_to_stop())
        tell(going)
        tidy(runs, at)
    return [result(run, at) for run in runs]


def wait_for_earlier(runs: Sequence[Run], at: Workplace) -> None:
    """Waits for runs of an earlier call, which was killed, to write their checkpoints."""
    until = time.monotonic() + LOCKED_SECONDS
    while any(state(run, at.folder.rows).kind == RUNNING for run in runs):
        if time.monotonic() > until:
            raise BadInput(f"another process trains in {at.folder.rows}. Wait for it, or stop it first.")
        time.sleep(children.POLL_SECONDS)


def begin(run: Run, at: Workplace) -> Child:
    """Starts or resumes a run. The words added to the table's command do not change the training. SIGUSR1 stops the run
    after a checkpoint; repeated signals have no further effect."""
    s, path = at.settings, at.folder.rows / run.name
    words = command(run, str(at.choices.data_dir) if at.choices.data_dir else None, str(path))[1:]
    words += ["--resume", "auto", "--keep", "1", "--no-tensorboard", "--evaluate-every", str(s.every[0])]
    words += ["--checkpoint-every", str(s.every[1])]
    env = environment(at.choices.precision, base_flags(at), at.folder.line("row-flags").get("flags", ""))
    return Child(words, run.name, log=at.folder.rows / f"{run.name}.log", env=env, stop=signal.SIGUSR1)


def tell(going: Mapping[str, Child]) -> None:
    for name, child in going.items():
        print(f"           {name}: {last_line(child.log)}", flush=True)


def tidy(runs: Sequence[Run], at: Workplace) -> None:
    """Removes the checkpoints of finished runs: they are the large files in the folder."""
    for run in runs:
        path = at.folder.rows / run.name / CHECKPOINTS
        if path.exists() and state(run, at.folder.rows).kind == DONE:
            shutil.rmtree(path, ignore_errors=True)


def result(run: Run, at: Workplace) -> Line:
    summary = read_json(at.folder.rows / run.name / SUMMARY)
    names = ("test_error_percent", "images_per_second", "seconds", "final_state_sha256")
    says = f"{run.name}: test error {summary['test_error_percent']:.2f}%, {summary['seconds'] / 3600:.2f} hours"
    return {"run": run.name, **{name: summary[name] for name in names}, "says": says}
