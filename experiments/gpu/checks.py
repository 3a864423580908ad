"""The checks: if one fails, what is measured and trained afterwards would mean nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gpu import children
from experiments.gpu.folder import Line
from experiments.gpu.plan import CHECK, Once, Workplace
from fdg_jax.runs.run_files import SUMMARY, read_json

# What is taken over what was predicted. The prediction is of the moment at which a stage holds most, and stages that
# share a device do not all have theirs at once, so less is right. A device rounds every array up, so it counts more.
LEAST, MOST = 0.8, {"arrays": 1.05, "the device's own count": 1.3}
NOT_DETERMINISTIC, UNTUNED = "--xla_gpu_deterministic_ops=false", "--xla_gpu_autotune_level=0"
K_OF_ENGINES, K_OF_MEMORY = 3, 2
WORDS = "--K 2 --method fdg --beta 0.5 --seed 0 --evaluate-every 0 --checkpoint-every 0 --keep 1 --no-tensorboard"


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


class Devices(Once):
    """JAX sees the accelerator, and it computes."""

    def __init__(self) -> None:
        super().__init__("devices", CHECK, "devices, memory, versions")

    def run(self, at: Workplace) -> list[Line]:
        log, env = at.folder.place("devices.log"), children.environment("float32")
        found = children.ask("devices", {}, log, env)
        right = found["platform"] != "cpu" or at.settings.device == "cpu"
        memory = f", {found['memory_bytes'] / 2**30:.1f} GiB" if found["memory_bytes"] else ""
        says = (
            f"{found['devices']} x {found['device']}{memory}; JAX {found['jax']}, jaxlib {found['jaxlib']}, Flax "
            f"{found['flax']}, Python {found['python']}, {found['cores']} cores"
        )
        if not right:
            says = f"JAX finds no accelerator, only {found['device']}. Install a JAX for this GPU, or use --small"
        return [{"passed": right and found["computes"], "says": says, **found}]


def training(at: Workplace, path: Path, steps: int, *more: str) -> list[str]:
    """The words of the training command for a run whose bits are compared."""
    s = at.settings
    return [
        "-m", "fdg_jax.experiments.cifar", "--model", s.check_model, *s.check_words.split(), *WORDS.split(),
        "--steps", str(steps), "--run-dir", str(path), *more,
    ]  # fmt: skip


def base_flags(at: Workplace) -> str:
    """The XLA flags that the determinism check needed besides the usual one."""
    return at.folder.line("determinism").get("flags", "")


def environment(at: Workplace, *flags: str) -> dict[str, str]:
    """Of runs whose bits are compared."""
    s = at.settings
    return children.environment(at.choices.precision, base_flags(at), *flags, compile_anew=s.compile_anew)


def reference(at: Workplace) -> str:
    """The hash in which the determinism check ended. Raises ChildFailed where it has none."""
    for line in [*at.folder.lines("determinism"), *at.folder.lines("determinism", failed=True)]:
        if "state_sha256" in line:
            return line["state_sha256"]
    raise children.ChildFailed("the determinism check has no result to compare with")


def ends(paths: Sequence[Path]) -> list[dict[str, Any]]:
    return [read_json(path / SUMMARY) for path in paths]


class Determinism(Once):
    """The same training twice, side by side in processes that compile for themselves, ends in the same bits with
    XLA's flag for that, or else with that and without autotuning; `flags` is what it took, and all other parts and
    the rows have them. What happens without the flag is only told."""

    needs: tuple[str, ...] = ("devices",)

    def __init__(self) -> None:
        super().__init__("determinism", CHECK, "the same training twice ends in the same bits")

    def run(self, at: Workplace) -> list[Line]:
        kinds = {"as asked": "", "without the flag": NOT_DETERMINISTIC}
        found = twice(at, kinds if at.settings.device == "gpu" else {"as asked": ""})
        flags, same = "", alike(found["as asked"])
        if not same and at.settings.device == "gpu":
            found |= twice(at, {"untuned": UNTUNED})
            flags, same = UNTUNED, alike(found["untuned"])
        says = f"{at.settings.check_steps} batches twice with {children.joined(children.DETERMINISTIC, flags)}: "
        says += "the same bits" if same else "OTHER BITS"
        if "without the flag" in found:
            says += f"; without it {'the same' if alike(found['without the flag']) else 'others'}"
        hashes = {kind: [each["final_state_sha256"] for each in both] for kind, both in found.items()}
        speeds = {kind: [each["images_per_second"] for each in both] for kind, both in found.items()}
        kept = {"flags": flags, "state_sha256": hashes["untuned" if flags else "as asked"][0]}
        return [{"passed": same, "says": says, **kept, "hashes": hashes, "images_per_second": speeds}]


def twice(at: Workplace, kinds: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The summaries of two trainings with the XLA flags of each kind, all side by side. Raises ChildFailed."""
    paths = {kind: [at.folder.place(f"{kind}-{i}".replace(" ", "-")) for i in (1, 2)] for kind in kinds}
    children.run_all(
        [
            (training(at, path, at.settings.check_steps), path.with_suffix(".log"), environment(at, kinds[kind]))
            for kind, both in paths.items()
            for path in both
        ]
    )
    return {kind: ends(both) for kind, both in paths.items()}


def alike(both: Sequence[Mapping[str, Any]]) -> bool:
    return len({each["final_state_sha256"] for each in both}) == 1


class Resume(Once):
    """A run that was stopped in the middle and continued by another process ends in the bits of one that was not."""

    needs: tuple[str, ...] = ("determinism",)

    def __init__(self) -> None:
        super().__init__("resume", CHECK, "a run that was stopped and resumed ends in the same bits")

    def run(self, at: Workplace) -> list[Line]:
        path, steps = at.folder.place("resumed"), at.settings.check_steps
        for words in (training(at, path, steps // 2), training(at, path, steps, "--resume")):
            children.run(words, path.with_suffix(".log"), environment(at))
        found, whole = ends([path])[0]["final_state_sha256"], reference(at)
        says = f"stopped after {steps // 2} of {steps} batches: {'the same bits' if found == whole else 'OTHER BITS'}"
        return [{"passed": found == whole, "says": says, "state_sha256": found, "without_stop": whole}]


class Engines(Once):
    """The engines train the same, and what plain JAX trains."""

    needs: tuple[str, ...] = ("devices",)

    def __init__(self) -> None:
        super().__init__("engines", CHECK, "the engines against each other and against plain JAX")

    def run(self, at: Workplace) -> list[Line]:
        s = at.settings
        given = {"model": "resnet8", "K": K_OF_ENGINES, "steps": s.engine_steps, "batch_size": s.engine_batch}
        found = children.ask("engines", given, at.folder.place("engines.log"), children.environment("float32"))
        most, wrong, bound = max(found["from_oracle"].values()), found["one_update_sooner"], found["bound"]
        close = max(most, found["between_engines"]) <= bound
        telling = wrong >= found["needed_ratio"] * bound
        says = (
            f"weights after {found['steps']} batches, of their norm: engines {found['between_engines']:.1e} from each "
            f"other, {most:.1e} from plain JAX; bound {bound:.0e}; gradients one update sooner: {wrong:.1e}"
        )
        if not telling:
            says += f", which is not {found['needed_ratio']:g} times the bound, so this check tells nothing"
        return [{"passed": close and telling, "says": says, **found}]


class Memory(Once):
    """What the training command predicts of the memory is what the arrays take."""

    needs: tuple[str, ...] = ("devices",)

    def __init__(self) -> None:
        super().__init__("memory", CHECK, "memory predicted against memory taken")

    def run(self, at: Workplace) -> list[Line]:
        s = at.settings
        given = {"model": s.check_model, "K": K_OF_MEMORY, "batch_size": s.batch_size, "dataset": "synthetic"}
        found = children.ask("memory", given, at.folder.place("memory.log"), children.environment("float32"))
        taken = {"arrays": found["live_bytes"], "the device's own count": found["in_use_bytes"]}
        ratios = {name: size / found["predicted_bytes"] for name, size in taken.items() if size is not None}
        right = all(LEAST <= ratio <= MOST[name] for name, ratio in ratios.items())
        each = (f"{name} {ratio:.3f} of it (allowed {LEAST} to {MOST[name]})" for name, ratio in ratios.items())
        says = (
            f"{found['model']}, K={found['K']} on one device: predicted {megabytes(found['predicted_bytes'])}, "
            f"taken at most: {', '.join(each)}"
        )
        if found["peak_bytes"] is not None:  # also what compiling and choosing kernels took, so it is only told
            temporary = megabytes(found["temporary_bytes"]) if found["temporary_bytes"] is not None else "unknown"
            says += f"; with temporary buffers (the largest {temporary}) {megabytes(found['peak_bytes'])}"
        return [{"passed": right, "says": says, **found}]
