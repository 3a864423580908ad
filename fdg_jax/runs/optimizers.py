"""The defaults that each optimizer has of its own, where nobody gives a value. Numbers only: --help needs no JAX.

SGD's are the paper's and stand with the flags. AdamW's are usual for small transformers; Lion has a tenth of that rate
and ten times the decay, as its paper advises; the others have AdamW's, as their updates are about as large. NAdam's
momentum is that of asynchronous Nesterov. Vectors are not decayed, as is usual there.
"""

from collections.abc import Mapping
from typing import Any

OF_OPTIMIZER: Mapping[str, Mapping[str, Any]] = {
    "sgd": {},
    "adamw": {"learning_rate": 1e-3, "weight_decay": 0.1, "decay": "matrices"},
    "lion": {"learning_rate": 1e-4, "weight_decay": 1.0, "decay": "matrices", "b2": 0.99},
    "muon": {"learning_rate": 1e-3, "weight_decay": 0.1, "decay": "matrices", "momentum": 0.95},
    "nadam": {"learning_rate": 1e-3, "weight_decay": 0.1, "decay": "matrices", "momentum": 0.99},
    "rotation": {"learning_rate": 1e-3, "weight_decay": 0.1, "decay": "matrices"},
}


def own_defaults(optimizer: Any) -> Mapping[str, Any]:
    """The options whose defaults an optimizer changes; none for a name that is not known, which is refused later."""
    return OF_OPTIMIZER.get(optimizer, {})


def chosen(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command line that are not at their defaults: those given, before the defaults of the command,
    before those of the optimizer. The paper's schedule has a warm-up of its own, so it takes no command's."""
    found = {**defaults, **given}
    if found.get("lr_schedule", "paper") == "paper" and "warmup_steps" not in given:
        found.pop("warmup_steps", None)
    return {**own_defaults(found.get("optimizer")), **found}


def described() -> str:
    """The defaults in words, for --help."""
    said = []
    for name, own in OF_OPTIMIZER.items():
        flags = [f"--{option.replace('_', '-')} {value}" for option, value in own.items()]
        said += [f"{name} ({', '.join(flags)})"] if flags else []
    return ", ".join(said)
