"""One page per correction of late gradients: its file's docstring, where it acts, and its options."""

import sys

from fdg_jax import corrections
from fdg_jax.corrections.interface import Correction, CorrectionSpec, Late
from tools.docs import docstrings
from tools.docs.methods import option_table

PLACES = {
    "forward": "the weights that a forward pass uses", "backward": "the weights that a backward pass uses",
    "gradient": "the gradient", "before": "the gradient, before the optimizer", "optimizer": "the update",
}  # fmt: skip


def pages() -> dict[str, str]:
    """The pages by path; docs/corrections.md explains what they share."""
    return {f"docs/corrections/{name}.md": page(corrections.find(name)) for name in corrections.names()}


def page(kind: CorrectionSpec) -> str:
    """The page of a correction."""
    name, said = kind.name, sys.modules[f"fdg_jax.corrections.{kind.name}"].__doc__ or ""
    made: Correction = kind.make(Late(1, 3, 3.0, lambda n: 0.1, 0.9), **kind.accepted({"beta": 0.5}))
    changed = [what for part, what in PLACES.items() if getattr(made, part)]
    needs = [f"the optimizer's {each.replace('_', ' ')}" for each in kind.needs]
    facts = [f"It changes {' and '.join(changed) or 'nothing'}."]
    facts += [f"It needs {' and '.join(needs)}: in Python, keywords of their own."] if needs else []
    facts += [f"It is for `--weights {kind.weights}` only."] if kind.weights else []
    return f"""# {name}

*{docstrings.escaped(kind.summary)}*

{docstrings.markdown(said, "equation", names=False)}

{" ".join(facts)}

## Options

{options(kind)}

[Late gradients](../corrections.md) compares all corrections. The whole file:
[fdg_jax/corrections/{name}.py](../../fdg_jax/corrections/{name}.py).
"""


def options(kind: CorrectionSpec) -> str:
    """The options as a table."""
    return option_table(kind.declared.values(), kind.takes) or "It has none."
