"""The arms of the table of corrections on images: every correction, and combinations from papers.

Muon is not among them: optax's Muon uses Adam for the kernels of convolutions, so it is compared on text only.

Published claims are from the papers' texts, except those marked (abstract) or (from memory).
"""

from collections.abc import Mapping
from typing import Any

from experiments.tuning.arms import Arm, Part

EPOCHS, TUNING_EPOCHS, HELD_OUT = 5, 2, 5_000
QUARTER = 244  # PipeMare's T: a quarter of a final run's updates at the first learning rate
MULTIPLES, SEEDS = (0.5, 1.0, 2.0), (0, 1, 2)
SGD_RATE, ADAM_RATE = 0.1, 1e-3
FDG: dict[str, Any] = {"method": "fdg", "engine": "delay-line"}
BPS: dict[str, Any] = {"method": "bp", "engine": "delay-line"}
DECOUPLED = {"weight_decay": 0.1, "decay": "matrices"}
NADAM = {"optimizer": "nadam", **DECOUPLED}
ROTATION = {"optimizer": "rotation", **DECOUPLED}
MOMENTA = ({"momentum": 0.9}, {"momentum": 0.7})  # tuned for arms without an option of their own
NADAM_MOMENTA = ({"momentum": 0.99}, {"momentum": 0.9})
ANNEALED = ({"anneal_updates": 0}, {"anneal_updates": QUARTER})
BETAS = ({"beta": 0.5}, {"beta": 0.3})
CURRENT = {"method": "fdg", "engine": "pipeline", "weights": "current"}
LESS = "errs less than FDG without a correction"


def corrected(name: str, **options: Any) -> dict[str, Any]:
    """FDG's flags with `--correct name`."""
    return {**FDG, "correct": name, **options}


def arm(
    name: str, label: str, flags: Mapping[str, Any], own: tuple[Any, ...], claim: str = "", rule: str = "less",
    rate: float = SGD_RATE, **about: Any,
) -> Arm:  # fmt: skip
    return Arm(name, label, flags, own, rate, claim, rule, **about)


BP = arm("bp", "BP, SGD", BPS, MOMENTA)
# Arms with another optimizer than SGD -> BP with that optimizer, which shows its effect without delay.
OWN_BP = {
    "nadam": arm("bp-nadam", "BP, NAdam", {**BPS, **NADAM}, NADAM_MOMENTA, rate=ADAM_RATE),
    "rotation": arm("bp-rotation", "BP, basis rotation", {**BPS, **ROTATION}, MOMENTA, rate=ADAM_RATE),
}
STALE = arm("fdg", "FDG, β = 1", FDG, MOMENTA, "FDG: without shrinking late gradients cost accuracy", "worse")
ARMS = (
    STALE,
    arm("beta", "FDG, β", FDG, BETAS, f"FDG: with β it {LESS}"),
    arm("rate", "rates by staleness, or PipeMare's T1", corrected("rate"), ANNEALED,
        f"staleness-aware SGD, PipeMare's T1 (from memory): it {LESS}"),
    arm("last", "anticipate, last update", corrected("anticipate", prediction="last"), MOMENTA,
        "error feedback: level with synchronous training (published for 10B weights, a staleness of 1)", "level",
        most_late=1),
    arm("spike", "anticipate, spike compensation", corrected("anticipate", prediction="spike"), MOMENTA,
        f"spike compensation (abstract), msnag: it {LESS}"),
    arm("rate-last", "rate or T1, and anticipate, last update",
        corrected("rate,anticipate", prediction="last"), ANNEALED),
    arm("linear", "anticipate, linear", corrected("anticipate", prediction="linear"), MOMENTA,
        f"LWP (abstract), XPipe, PipeOptim: it {LESS}"),
    arm("nesterov", "anticipate, Nesterov", corrected("anticipate", prediction="nesterov"), MOMENTA,
        f"AsyncPP's theory (a bound for convex losses) implies: it {LESS}"),
    arm("beta-spike", "FDG, β and spike compensation", corrected("shrink,anticipate", prediction="spike"), BETAS),
    arm("dc-constant", "DC-ASGD, constant λ", corrected("dc_asgd", compensation="constant"),
        ({"compensation_strength": 0.04}, {"compensation_strength": 0.4}), f"DC-ASGD (abstract): it {LESS}"),
    arm("dc-adaptive", "DC-ASGD, adaptive λ", corrected("dc_asgd", compensation="adaptive"),
        ({"compensation_strength": 2.0}, {"compensation_strength": 0.5}), f"DC-ASGD (abstract): it {LESS}"),
    arm("gap-aware", "Gap-Aware", corrected("gap_aware"), MOMENTA, f"Gap-Aware (weight decay not divided): it {LESS}"),
    arm("cosine", "cosine gate", corrected("cosine"), ({"gate_decay": 0.0}, {"gate_decay": 0.1})),
    arm("t2", "PipeMare's T2", {**CURRENT, "correct": "t2"}, ({"discrepancy": 0.135}, {"discrepancy": 0.5})),
    arm("pipemare", "PipeMare: rate or T1, and T2", {**CURRENT, "correct": "rate,t2"}, ANNEALED,
        "PipeMare (abstract; here without its T3): level with synchronous training", "level"),
    arm("nadam", "asynchronous Nesterov (NAdam)", {**FDG, **NADAM}, NADAM_MOMENTA,
        "AsyncPP: level with synchronous training or better", "level", ADAM_RATE),
    arm("rotation", "basis rotation", {**FDG, **ROTATION}, MOMENTA, rate=ADAM_RATE),
    # Added after the results of all above were known at K = 4; these have no runs at K = 2.
    arm("combined", "anticipate, spike compensation and linear", corrected("anticipate", prediction="combined"),
        MOMENTA, f"spike compensation with LWP (from memory): it {LESS}"),
    arm("double", "anticipate, linear by 2τ", corrected("anticipate", prediction="double"), MOMENTA,
        f"LWP by 2τ (from memory): it {LESS}"),
)  # fmt: skip
LATER = ("combined", "double")
# The balanced cuts on a CPU, where the first of these runs were made. On a GPU other cuts are balanced, as narrow
# convolutions take fewer FLOPs there.
CUTS = {4: {"split": "2,4,7"}}
# At a staleness of 1, each arm equals the arm beside it here, since it looks one update ahead, or divides by 1.
SAME_AT_ONE = {"linear": "last", "nesterov": "spike", "rate": "fdg", "rate-last": "last", "pipemare": "t2"}
SHARED = {
    "dataset": "cifar10", "model": "resnet20", "batch_size": 128, "optimizer": "sgd",
    "lr_schedule": "paper", "warmup": "on", "momentum": 0.9, "weight_decay": 5e-4,
}  # fmt: skip


def part(K: int, title: str, arms: tuple[Arm, ...]) -> Part:
    shared = {**SHARED, "K": K, **CUTS.get(K, {})}
    tuned, final = {"epochs": TUNING_EPOCHS, "hold_out": HELD_OUT}, {"epochs": EPOCHS, "hold_out": 0}
    return Part(f"K{K}", title, arms, shared, tuned, final, MULTIPLES, SEEDS)


OF_BP = part(1, "BP", (BP,))
FOUR = part(4, "K = 4", ARMS)
TWO = part(2, "K = 2", tuple(arm for arm in ARMS if arm.name not in (*SAME_AT_ONE, *LATER)))
OWN_BPS = part(1, "BP, other optimizers", tuple(OWN_BP.values()))
PARTS = (OF_BP, FOUR, OWN_BPS, TWO)
