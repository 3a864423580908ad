"""The list of steps in their order, and the function of each. Code that starts JAX runs in a process of its own."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.harness import children, report
from benchmarks.harness.children import Child, ChildFailed
from experiments.gpu.loop import CHECK, ROWS, SPEED, Choices, Line, Step, Workplace, lines_of
from experiments.gpu.pages import seeds_side
from experiments.gpu.settings import CAPTURE, Settings, more_seeds, rows
from experiments.harness import estimate, result_files
from experiments.harness.run_table import DONE, RUNNING, Run, command, state
from fdg_jax.data import cifar
from fdg_jax.errors import BadInput
from fdg_jax.machine.gpu_flags import FILE, REPEATABLE
from fdg_jax.runs.run_files import CHECKPOINTS, SUMMARY, read_json
from fdg_jax.sweep import last_line, plain

# The bounds on measured memory divided by predicted memory. The prediction is for the moment at which a stage holds
# most. Stages that share a device do not all reach this moment at once, so the ratio may be below 1. A device rounds
# every array up, so its own count is larger.
LEAST, MOST = 0.8, {"arrays": 1.05, "the device's own count": 1.3}
WORDS = "--K 2 --method fdg --beta 0.5 --seed 0 --evaluate-every 0 --checkpoint-every 0 --keep 1 --no-tensorboard"
MEMORY = 0.9  # the share of a device's memory that runs may take
FASTER = 1.05  # the smallest speed-up that counts; smaller ones are within the spread
IMAGES = {"digits": 1438, **estimate.IMAGES}
LOCKED_SECONDS = 60.0  # time for the last checkpoint of a run whose call was killed
TELL_SECONDS = 30.0


def steps(settings: Settings, choices: Choices) -> list[Step]:
    """All steps in their order: the most decisive first, then the rows, from the cheapest network on. Raises
    BadInput."""

    def rows_of(model: str, runs: Sequence[Run], more: str = "") -> Step:
        about = f"{'as many more seeds as fit' if more else len(runs)} runs of {runs[0].flags['epochs']} epochs"
        return Step(
            f"rows-{model}{more}", ROWS, about, lambda at: train(fitting(runs, at), at), ("devices", "flags", "seeds"),
            lambda at: row_seconds(model, runs, at), lambda at: row_refusal(model, runs, at), goes_on=True,
        )  # fmt: skip

    wanted = [run for run in rows(settings) if any(fnmatchcase(run.name, pattern) for pattern in choices.rows)]
    if not wanted:
        known = ", ".join(dict.fromkeys(f"'{run.flags['model']}-*'" for run in rows(settings)))
        fact = f"--rows {' '.join(choices.rows)}: no row of {settings.table.name} has such a name"
        raise BadInput(f"{fact}. There are {known}.")
    chosen = {model: [*runs] for model, runs in groupby(wanted, lambda run: run.flags["model"])}
    first, numbers = settings.model, ", ".join(map(str, settings.seeds))
    return [
        Step("devices", CHECK, "devices, memory, versions", devices),
        Step("flags", SPEED, f"{first}: precisions, tuned kernels, CUDA graphs", flags, ("devices",)),
        Step("seeds", SPEED, f"{numbers} seeds of {first} in one program", seeds, ("devices", "flags")),
        *(rows_of(model, runs) for model, runs in chosen.items()),
        Step("determinism", CHECK, "the same training twice ends in the same bits", determinism, ("devices",)),
        Step("resume", CHECK, "a run that was stopped and resumed ends in the same bits", resume, ("determinism",)),
        Step("engines", CHECK, "the engines against each other and against plain JAX", engines, ("devices",)),
        Step("memory", CHECK, "predicted memory against used memory", memory, ("devices",)),
        *(rows_of(first, more_seeds(chosen[model], settings.seeds[-1]), "-more") for model in chosen if model == first),
    ]


def environment(precision: str, *flags: str) -> dict[str, str]:
    """The environment of a process: the precision of float32 products, XLA flags, and no preallocation of GPU memory.

    Arguments:
        precision: float32 (products in full precision) or tf32 (JAX's default).
        flags: XLA flags. Of several flags with the same name, the last one counts.
    """
    found = {name: value for name, value in os.environ.items() if name != "JAX_DEFAULT_MATMUL_PRECISION"}
    found |= {"JAX_DEFAULT_MATMUL_PRECISION": "highest"} if precision == "float32" else {}
    if given := joined(found.get("XLA_FLAGS", ""), *flags):
        found["XLA_FLAGS"] = given
    return found | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def joined(*flags: str) -> str:
    """XLA flags as one text. For each name, only the last flag is kept."""
    words = [word for text in flags for word in text.split()]
    return " ".join({word.partition("=")[0]: word for word in words}.values())


def ask(name: str, at: Workplace, precision: str = "float32", flags: str = REPEATABLE, **given: Any) -> Any:
    """The answer of `experiments.gpu.on_device NAME`. Raises ChildFailed."""
    words = ("-m", "experiments.gpu.on_device", name, json.dumps(given))
    said = children.run(*words, log=at.folder.place(f"{name}.log"), answers=True, env=environment(precision, flags))
    return json.loads(said.splitlines()[-1])


# The checks. If one fails, later measurements and trainings mean nothing.


def devices(at: Workplace) -> list[Line]:
    """Checks that JAX sees the accelerator and can compute on it."""
    found = ask("devices", at)
    right = found["platform"] != "cpu" or at.settings.device == "cpu"
    memory = f", {found['memory_bytes'] / 2**30:.1f} GiB" if found["memory_bytes"] else ""
    versions = ", ".join(f"{name} {found[name.lower()]}" for name in ("JAX", "jaxlib", "Flax", "Python"))
    says = f"{found['devices']} x {found['device']}{memory}; {versions}, {found['cores']} cores"
    if not right:
        says = f"JAX finds no accelerator, only {found['device']}. Install a JAX for this GPU, or use --small"
    return [{"passed": right and found["computes"], "says": says, **found}]


def training(at: Workplace, path: Path, steps: int, *more: str) -> None:
    """A training whose final bits are compared. Raises ChildFailed."""
    s = at.settings
    words = ["-m", "fdg_jax.experiments.cifar", "--model", s.check_model, *s.check_words.split(), *WORDS.split()]
    words += ["--steps", str(steps), "--run-dir", str(path), *more]
    children.run_all([{"words": words, "log": path.with_suffix(".log"), "env": environment(at.choices.precision)}])


def determinism(at: Workplace) -> list[Line]:
    """Checks that a training repeats its bits in another process that loads the first process's choice of kernels."""
    paths = [at.folder.place(f"determinism-{i}") for i in (1, 2)]
    for path in paths:
        training(at, path, at.settings.check_steps)
        if (file := path / FILE).exists() and path is paths[0]:
            paths[1].mkdir()
            shutil.copy(file, paths[1])
    hashes = [read_json(path / SUMMARY)["final_state_sha256"] for path in paths]
    same, kept = len(set(hashes)) == 1, (paths[0] / FILE).exists()
    says = f"{at.settings.check_steps} batches twice{', with the same choice of kernels' * kept}: "
    says += "the same bits" if same else "OTHER BITS"
    return [{"passed": same, "says": says, "state_sha256": hashes[0], "hashes": hashes, "kernels_kept": kept}]


def reference(at: Workplace) -> str:
    """The final hash of the determinism check. Raises ChildFailed if there is none."""
    for line in at.folder.lines("determinism"):
        if "state_sha256" in line:
            return line["state_sha256"]
    raise ChildFailed("the check determinism has no result to compare with: run it first")


def resume(at: Workplace) -> list[Line]:
    """Checks that a stopped run, resumed in another process, ends in the same bits as an uninterrupted run."""
    path, n, whole = at.folder.place("resumed"), at.settings.check_steps, reference(at)
    training(at, path, n // 2)
    training(at, path, n, "--resume")
    found = read_json(path / SUMMARY)["final_state_sha256"]
    says = f"stopped after {n // 2} of {n} batches: {'the same bits' if found == whole else 'OTHER BITS'}"
    return [{"passed": found == whole, "says": says, "state_sha256": found, "without_stop": whole}]


def engines(at: Workplace) -> list[Line]:
    """Checks that the engines and plain JAX train the same weights."""
    found = ask("engines", at, model="resnet8", K=3, steps=10, batch_size=16)
    most, wrong, bound = max(found["from_oracle"].values()), found["one_update_sooner"], found["bound"]
    close, telling = max(most, found["between_engines"]) <= bound, wrong >= found["needed_ratio"] * bound
    says = (
        f"relative differences of weights after {found['steps']} batches: {found['between_engines']:.1e} between "
        f"engines, {most:.1e} from plain JAX (bound {bound:.0e}); {wrong:.1e} with gradients one update sooner"
    )
    if not telling:
        says += f", less than {found['needed_ratio']:g} times the bound, so this check proves nothing"
    return [{"passed": close and telling, "says": says, **found}]


def memory(at: Workplace) -> list[Line]:
    """Checks that arrays take the memory that the training command predicts."""
    found = ask("memory", at, model=at.settings.check_model, K=2, batch_size=at.settings.batch_size)
    taken = {"arrays": found["live_bytes"], "the device's own count": found["in_use_bytes"]}
    ratios = {name: size / found["predicted_bytes"] for name, size in taken.items() if size is not None}
    each = (f"{name} {ratio:.3f} of the prediction (allowed {LEAST} to {MOST[name]})" for name, ratio in ratios.items())
    says = f"{found['model']}, K={found['K']} on one device: predicted {found['predicted_bytes'] / 1e6:,.1f} MB"
    says += f"; largest used: {', '.join(each)}"
    return [{"passed": all(LEAST <= ratio <= MOST[name] for name, ratio in ratios.items()), "says": says, **found}]


# The speeds.


def flags(at: Workplace) -> list[Line]:
    """The flag matrix: a line for each side of the settings, measured in turns by benchmarks.images_per_second. A side
    may fail, since XLA ends a process with an unknown flag. The line of such a side has no `ratio` and says why. Raises
    ChildFailed if the baseline fails."""
    s, file, log = at.settings, at.folder.place("speeds.jsonl"), at.folder.place("speeds.log")
    words = ["--model", s.model, "--batch-size", str(s.batch_size), "--windows", str(s.windows), "--device", s.device]
    words += ["--seconds", str(s.seconds), "--skip-failed", "--json", str(file), "--sides", *s.sides.values()]
    plain = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    children.run("-m", "benchmarks.images_per_second", *words, log=log, env=plain)
    measured, lines = {row["side"]: row for row in lines_of(file)}, list[Line]()
    told, base = log.read_text(encoding="utf-8").splitlines(), next(iter(s.sides))
    for name, side in s.sides.items():
        about = {"model": s.model, "batch_size": s.batch_size, "side": name, "written": side}
        if (row := measured.get(side)) is None:
            why = next((line for line in told if line.startswith(f"Side {side} is ")), "")
            lines.append(about | {"says": f"{name}: not measured: {why}"})
            continue
        values, ratio = row["images_per_second_windows"], row["ratio"]
        says = f"{name}: {report.spread(values, 0)} images/s, {ratio:.2f} of {base}, n={len(values)}"
        kept = {"images_per_second": report.median(values, 1), "over": base, "ratio": ratio}
        lines.append(about | kept | {"windows": report.rounded(values, 1), "says": says})
    return lines


def captured(at: Workplace) -> str:
    """The flags that capture a window of batches; "" unless the flag matrix has shown that they are faster in the rows'
    precision."""
    speeds = {line["side"]: line["ratio"] for line in at.folder.lines("flags") if "ratio" in line}
    name = {"tf32": "TF32"}.get(at.choices.precision, at.choices.precision)
    with_them, without = (speeds.get(f"tuned, {kind}{name}") for kind in ("captured, ", ""))
    return CAPTURE if with_them and without and with_them >= FASTER * without else ""


def seeds(at: Workplace) -> list[Line]:
    """Total images/s of several seeds in one program, for several numbers of seeds in turns."""
    s, how = at.settings, joined(REPEATABLE, captured(at))
    given = {"model": s.model, "batch_size": s.batch_size, "numbers": s.seeds, "windows": s.windows}
    found, taken = ask("seeds", at, at.choices.precision, how, **given, seconds=s.seconds)
    return [
        {"model": s.model, "precision": at.choices.precision, "side": seeds_side(int(n)), "flags": how, "bytes": taken,
         "seeds": int(n), "images_per_second": report.median(speeds, 1), "windows": report.rounded(speeds, 1),
         "says": f"{seeds_side(int(n))}: {report.spread(speeds, 0)} images/s in sum, n={len(speeds)}"}
        for n, speeds in found.items()
    ]  # fmt: skip


# The rows of a network: its runs by the training command, several at a time; unfinished ones are resumed.


def row_seconds(model: str, runs: Sequence[Run], at: Workplace) -> float | None:
    """The seconds of a network's rows by its measured speed, without evaluations and compiling. Before the measurement,
    and for other networks, a guess; None if there is no guess."""
    runs = fitting(runs, at)
    most = max(map(len, groups(runs).values()), default=0)
    speeds = [line for line in at.folder.lines("seeds") if line["model"] == model and line["seeds"] <= most]
    if not speeds:
        return at.settings.guesses.get(f"rows-{model}")
    return sum(images_left(run, at) for run in runs) / speeds[-1]["images_per_second"]


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups of runs that differ only in seed and beta, by a common name. A group is one program."""
    of = {run.name: re.sub(r"(-beta[\d.]+)?-seed\d+$", "", run.name) for run in runs}
    return {name: [run for run in runs if of[run.name] == name] for name in of.values()}


def fitting(runs: Sequence[Run], at: Workplace) -> list[Run]:
    """The runs of the table, and more seeds as far as they fit. A program has at most as many runs as `seeds` measured,
    and as the device's memory holds by this measurement."""
    [line], table = at.folder.lines("seeds")[-1:] or [{}], {run.name for run in at.settings.table.runs}
    most, room = at.settings.seeds[-1], at.folder.line("devices").get("memory_bytes")
    if room and line.get("bytes"):
        most = min(most, int(MEMORY * room / line["bytes"] * line["seeds"]))
    betas = len({run.flags.get("beta") for run in runs} - {None}) or 1
    return [run for run in runs if run.name in table or run.flags["seed"] < most // betas]


def images_left(run: Run, at: Workplace) -> float:
    images, now = run.flags.get("train_size") or IMAGES[run.flags["dataset"]], state(run, at.folder.rows)
    return max(0.0, (run.flags["epochs"] - now.epochs) * images) if now.kind != DONE else 0.0


def row_refusal(model: str, runs: Sequence[Run], at: Workplace) -> str:
    seconds = row_seconds(model, runs, at)
    if seconds and seconds > at.choices.hours * 3600:
        took = estimate.duration(seconds)
        return f"it would take about {took}, more than --hours {at.choices.hours:g}: raise --hours"
    return data_missing(at)


def data_missing(at: Workplace) -> str:
    """A sentence on the data that the rows need and that are missing; "" if nothing is missing."""
    try:
        found = at.settings.dataset != "cifar10" or cifar.find("cifar10", at.choices.data_dir)
    except BadInput as error:
        return str(error)
    return "" if found or at.choices.data_dir is None else f"{at.choices.data_dir} holds no CIFAR-10"


def train(runs: Sequence[Run], at: Workplace) -> list[Line]:
    """Trains all unfinished runs. The runs of a group train as one program. Raises ChildFailed if one fails."""
    wait_for_earlier(runs, at)
    for name, of_row in groups(runs).items():
        left = [run for run in of_row if state(run, at.folder.rows).kind != DONE]
        if left:
            print(f"           {name}: {len(of_row) - len(left)} of {len(of_row)} runs are done", flush=True)
            finish_row(name, left, at)
            tidy(runs, at)
            results = at.choices.results or at.folder.path / "collected"
            result_files.collect(at.settings.table._replace(runs=tuple(runs)), at.folder.rows, results)
    return [result(run, at) for run in runs]


def finish_row(name: str, runs: Sequence[Run], at: Workplace) -> None:
    """Starts or resumes the runs of a row, and waits for their end. Raises ChildFailed."""
    child, told = begin(name, runs, at), time.monotonic()
    try:
        while child.running:
            time.sleep(children.POLL_SECONDS)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                tell(child)
        if child.process.returncode:
            raise child.failure()
    finally:
        children.end([child], at.clock.left_to_stop())
        tell(child)


def wait_for_earlier(runs: Sequence[Run], at: Workplace) -> None:
    """Waits until runs of an earlier, killed call have written their checkpoints."""
    until = time.monotonic() + LOCKED_SECONDS
    while any(state(run, at.folder.rows).kind == RUNNING for run in runs):
        if time.monotonic() > until:
            raise BadInput(f"another process trains in {at.folder.rows}. Wait until that process ends, or stop it.")
        time.sleep(children.POLL_SECONDS)


def begin(name: str, runs: Sequence[Run], at: Workplace) -> Child:
    """Starts or resumes the runs of a group together. A link with the run's name leads to each run's directory. SIGUSR1
    stops the runs after a checkpoint; repeated signals have no further effect."""
    s, swept = at.settings, [key for key in ("beta", "seed") if key in runs[0].flags]
    for run in runs:
        if not os.path.lexists(link := at.folder.rows / run.name):
            link.symlink_to(Path(name) / "_".join(f"{key}-{plain(run.flags[key])}" for key in swept))
    row = runs[0]._replace(flags={key: value for key, value in runs[0].flags.items() if key not in swept})
    words = command(row, str(at.choices.data_dir) if at.choices.data_dir else None, str(at.folder.rows / name))[1:]
    for key in swept:
        words += ["--sweep", f"{key}={','.join(dict.fromkeys(plain(run.flags[key]) for run in runs))}"]
    words += ["--together", "--keep", "1", "--no-tensorboard"]
    words += ["--evaluate-every", str(s.every[0]), "--checkpoint-every", str(s.every[1])]
    env = environment(at.choices.precision, captured(at))
    return Child(words, name, log=at.folder.rows / f"{name}.log", env=env, stop=signal.SIGUSR1)


def tell(child: Child) -> None:
    print(f"           {last_line(child.log)}", flush=True)


def tidy(runs: Sequence[Run], at: Workplace) -> None:
    """Removes the checkpoints of finished runs, which are the large files in the folder."""
    for run in runs:
        path = at.folder.rows / run.name / CHECKPOINTS
        if path.exists() and state(run, at.folder.rows).kind == DONE:
            shutil.rmtree(path, ignore_errors=True)


def result(run: Run, at: Workplace) -> Line:
    summary = read_json(at.folder.rows / run.name / SUMMARY)
    names = ("test_error_percent", "images_per_second", "seconds", "final_state_sha256")
    says = f"{run.name}: test error {summary['test_error_percent']:.2f}%, {summary['seconds'] / 3600:.2f} hours"
    return {"run": run.name, **{name: summary[name] for name in names}, "says": says}
