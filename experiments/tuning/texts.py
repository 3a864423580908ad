"""The arms of the table of corrections on text: AdamW and Muon at K = 8, and how gaps grow with K.

The learning rate is constant after its warm-up. So the loss after n steps equals the final loss of a run of n steps,
and one run shows how many tokens an arm needs for BP's loss.
"""

from typing import Any

from experiments.tuning import corpus
from experiments.tuning.arms import Arm, Part

BATCH, BLOCK, BLOCKS, HELD_OUT = 16, 64, 16_000, 8_000  # the last two: blocks for training, for tuning
STEPS_PER_EPOCH = BLOCKS // BATCH
EPOCHS, TARGET_EPOCH, TUNING_EPOCHS = 3, 2, 1  # 3,000 steps; the target is BP's loss after 2,000; tuning takes 1,000
TARGET_STEPS, STEPS = TARGET_EPOCH * STEPS_PER_EPOCH, EPOCHS * STEPS_PER_EPOCH
MULTIPLES, SEEDS, RATE, WARMUP = (0.5, 1.0, 2.0, 4.0), (0, 1, 2), 1e-3, 200
ANNEALED = 5 * WARMUP  # PipeMare's T for transformers
TEXT = f"runs/corrections_text/{corpus.SHA256}.txt"

FDG: dict[str, Any] = {"method": "fdg", "engine": "delay-line"}
DDG: dict[str, Any] = {"method": "ddg", "engine": "delay-line"}
BPS: dict[str, Any] = {"method": "bp", "engine": "delay-line"}
CURRENT: dict[str, Any] = {"method": "fdg", "engine": "pipeline", "weights": "current"}
ADAMW = {"optimizer": "adamw", "momentum": 0.9}
MUON = {"optimizer": "muon", "momentum": 0.95}
NADAM = {"optimizer": "nadam", "momentum": 0.99}
ROTATION = {"optimizer": "rotation", "momentum": 0.9}
LESS = "it errs less than FDG without a correction"
OF_NADAM = "AsyncPP: level with synchronous AdamW or better (published for PipeDream's 8 stages)"
OF_ROTATION = "basis rotation: 1.27 times its own BP's iterations (K = 32)"


def arm(name: str, label: str, flags: dict[str, Any], claim: str = "", rule: str = "less", **about: Any) -> Arm:
    return Arm(name, label, flags, ({},), RATE, claim, rule, **about)


def corrected(optimizer: dict[str, Any], name: str, method: dict[str, Any] = FDG, **options: Any) -> dict[str, Any]:
    return {**method, **optimizer, "correct": name, **options}


T1: dict[str, Any] = {"anneal_updates": ANNEALED}
BP, STALE = arm("bp", "BP", {**BPS, **ADAMW}), arm("fdg", "FDG", {**FDG, **ADAMW})
ANNEAL = arm("t1", "PipeMare's T1", corrected(ADAMW, "rate", **T1), f"PipeMare (from memory): with T1 {LESS}")
OF_ADAMW = (
    BP,
    STALE,
    arm("ddg", "DDG, which is PipeDream (half as stale)", {**DDG, **ADAMW}),
    ANNEAL,
    arm("rate", "rates by staleness", corrected(ADAMW, "rate"), f"staleness-aware rates (published for SGD): {LESS}"),
    arm("last", "anticipate, last update", corrected(ADAMW, "anticipate", prediction="last"),
        f"error feedback: {LESS} (published for a staleness of 1)", most_late=1),
    arm("linear", "anticipate, linear", corrected(ADAMW, "anticipate", prediction="linear"),
        f"XPipe, PipeOptim: {LESS}"),
    arm("spike", "anticipate, spike", corrected(ADAMW, "anticipate", prediction="spike"), f"msnag: {LESS}"),
    arm("t1-last", "T1 and anticipate, last update", corrected(ADAMW, "rate,anticipate", prediction="last", **T1)),
    arm("dc-adaptive", "DC-ASGD, adaptive λ", corrected(ADAMW, "dc_asgd", compensation="adaptive"),
        "marin: next to nothing under Adam", "none"),
    arm("gap-aware", "Gap-Aware", corrected(ADAMW, "gap_aware"), f"Gap-Aware (published for SGD): {LESS}"),
    arm("cosine", "cosine gate", corrected(ADAMW, "cosine")),
    arm("t2", "PipeMare's T2", {**CURRENT, **ADAMW, "correct": "t2"}),
    arm("pipemare", "PipeMare, T1 and T2", {**CURRENT, **ADAMW, "correct": "rate,t2", **T1},
        "PipeMare (abstract; here without its T3): level with synchronous training", "within"),
    arm("nadam", "asynchronous Nesterov (NAdam)", {**FDG, **NADAM}, OF_NADAM, "within", most_late=7),
    arm("bp-rotation", "BP, basis rotation", {**BPS, **ROTATION}),
    arm("rotation", "basis rotation", {**FDG, **ROTATION}, OF_ROTATION, "within-1.27", reference="bp-rotation"),
)  # fmt: skip
OF_MUON = (
    arm("bp-muon", "BP", {**BPS, **MUON}),
    arm("fdg-muon", "FDG", {**FDG, **MUON}, "2606.30634 and marin: Muon loses less by delays than AdamW", "gap",
        reference="bp-muon"),
    arm("t1-muon", "PipeMare's T1", corrected(MUON, "rate", **T1), f"PipeMare (from memory): with T1 {LESS}",
        reference="bp-muon", stale="fdg-muon"),
    arm("last-muon", "anticipate, last update", corrected(MUON, "anticipate", prediction="last"),
        f"error feedback: {LESS} (published for a staleness of 1)", reference="bp-muon", stale="fdg-muon", most_late=1),
    arm("t1-last-muon", "T1 and anticipate, last update",
        corrected(MUON, "rate,anticipate", prediction="last", **T1), reference="bp-muon", stale="fdg-muon"),
)  # fmt: skip
# Added after the results above were known: marin's claim is about Muon, and `rate` helps AdamW most.
LATER_OF_MUON = (
    arm("rate-muon", "rates by staleness", corrected(MUON, "rate"), reference="bp-muon", stale="fdg-muon"),
    arm("linear-muon", "anticipate, linear", corrected(MUON, "anticipate", prediction="linear"), f"marin: {LESS}",
        reference="bp-muon", stale="fdg-muon"),
)  # fmt: skip
# Added last, for the three optimizers that lose least: half the staleness, and for two of them also linear prediction.
JOINED_LAST = (
    arm("nadam-ddg", "asynchronous Nesterov (NAdam), DDG", {**DDG, **NADAM}, OF_NADAM, "within", most_late=7),
    arm("rotation-ddg", "basis rotation, DDG", {**DDG, **ROTATION}, OF_ROTATION, "within-1.27",
        reference="bp-rotation"),
    arm("linear-rotation", "basis rotation, anticipate, linear",
        corrected(ROTATION, "anticipate", prediction="linear"), reference="bp-rotation"),
    arm("linear-rotation-ddg", "basis rotation, DDG, anticipate, linear",
        corrected(ROTATION, "anticipate", DDG, prediction="linear"), reference="bp-rotation"),
)  # fmt: skip
JOINED_LAST_OF_MUON = (
    arm("ddg-muon", "DDG", {**DDG, **MUON}, reference="bp-muon"),
    arm("linear-ddg-muon", "DDG, anticipate, linear", corrected(MUON, "anticipate", DDG, prediction="linear"),
        reference="bp-muon"),
)  # fmt: skip
SHARED = {
    "dataset": "text", "text": TEXT, "block_size": BLOCK, "batch_size": BATCH, "train_size": BLOCKS,
    "lr_schedule": "constant", "warmup_steps": WARMUP, "clip_norm": 1.0, "weight_decay": 0.1, "decay": "matrices",
    "b2": 0.99,
}  # fmt: skip
# At K = 2 the staleness is 1: dividing by it changes nothing, and DDG's schedule is FDG's. With the chosen rates, each
# of these arms would repeat the runs of the arm beside it.
SAME_AT_TWO = {"ddg": "fdg", "rate": "t1", "t1-muon": "fdg-muon", "t1-last-muon": "last-muon"}
TUNED, FINAL = {"epochs": TUNING_EPOCHS, "hold_out": HELD_OUT}, {"epochs": EPOCHS, "hold_out": 0}


def part(
    name: str, title: str, arms: tuple[Arm, ...], model: str, K: int, chosen_by: Part | None = None,
    seeds: tuple[int, ...] = SEEDS,
) -> Part:  # fmt: skip
    shared, module = {**SHARED, "model": model, "K": K}, "fdg_jax.experiments.language_model"
    return Part(name, title, arms, shared, TUNED, FINAL, MULTIPLES, seeds, module, chosen_by)


def grown(
    title: str, arms: tuple[Arm, ...], chosen_by: Part, seeds: tuple[int, ...] = SEEDS
) -> tuple[Part, ...]:
    """A part for each number of stages of a network of 16 layers, with the rates that were chosen for 8 layers."""
    left = tuple(arm for arm in arms if arm.name not in SAME_AT_TWO)
    return tuple(
        part(f"grow{K}", f"16 layers, {title}", left if K == 2 else arms, "transformer16x64", K, chosen_by, seeds)
        for K in (8, 2, 16, 4)
    )


def eight(title: str, arms: tuple[Arm, ...]) -> Part:
    """A part with the network of 8 layers, one layer per stage."""
    return part("K8", f"{title}, K = 8", arms, "transformer8x64", 8)


EIGHT, JOINED = (eight("AdamW, NAdam and basis rotation", arms) for arms in (OF_ADAMW, JOINED_LAST))
EIGHT_MUON, LATER_MUON, JOINED_MUON = (eight("Muon", arms) for arms in (OF_MUON, LATER_OF_MUON, JOINED_LAST_OF_MUON))
FIRST = (BP, STALE, ANNEAL)
GROWTH = grown("BP, FDG and T1", FIRST, EIGHT)
GROWTH_OF_REST = (
    *grown("Muon", OF_MUON, EIGHT_MUON, seeds=(0,)),
    *grown("the other arms", tuple(arm for arm in OF_ADAMW if arm not in FIRST), EIGHT, seeds=(0,)),
)
AT_EIGHT = (EIGHT, EIGHT_MUON, LATER_MUON, JOINED, JOINED_MUON)
PARTS = (*AT_EIGHT, *GROWTH, *GROWTH_OF_REST)
