"""How large a learning rate a stale gradient allows: of a parabola, by staleness, momentum and correction.

Everything is linear, so eigenvalues tell the limit; and the library trains the parabola, with thousands of curvatures
side by side, and finds the same limit.
"""

import sys
from pathlib import Path
from typing import Any

from experiments.harness import markdown
from experiments.harness.run_table import Lines, Run, Table
from experiments.harness.table_command import main

NAME = "stability"
TAUS, MOMENTA = (1, 3, 7, 15), (0.0, 0.9, 0.99)
ARMS = {
    "none": "no correction",
    "rate": "rate / τ (the rate before it is divided)",
    "last": "anticipate, c = 1 (error feedback)",
    "linear": "anticipate, c = τ (weight prediction)",
    "spike": "anticipate, c = (m - m^(τ+1))/(1-m) (spike compensation)",
    "nesterov": "anticipate, c = m (one Nesterov step)",
    "combined": "anticipate, c = τ + that of spike compensation",
    "double": "anticipate, c = 2τ",
}
GRID = tuple(
    Run(f"{arm}-m{m:g}-tau{tau}", {"arm": arm, "momentum": m, "staleness": tau})
    for m in MOMENTA
    for tau in TAUS
    for arm in ARMS
)


def measure(run: Run) -> dict[str, Any]:
    """Both limits, as rate * h / (1 - m), and the exact one of plain SGD."""
    from experiments.limits import eigenvalues, measured
    from fdg_jax.corrections.anticipate import coefficient

    arm, m, tau = run.flags["arm"], run.flags["momentum"], run.flags["staleness"]
    predicts = arm not in ("none", "rate")
    by_roots = eigenvalues.limit(m, coefficient(arm, tau, m) if predicts else 0.0, tau) * (tau if arm == "rate" else 1)
    correct, options = ("anticipate", {"prediction": arm}) if predicts else (arm, {})
    trained = measured.limit(m, tau, correct, options)
    return {
        "eigenvalues": by_roots / (1 - m),
        "measured": trained / (1 - m),
        "exact": eigenvalues.exact_limit(tau) if arm == "none" and m == 0 else None,
    }


WORDS = (
    "**How to read it:** the largest learning rate at which an error on the loss h x²/2 still shrinks, times "
    "h / (1 - m): m is the momentum, v ← m v + g. First from eigenvalues, then, in parentheses, as the library's "
    "delay-line engine trains 2,000 curvatures for 3,000 updates: the first of these at which an error does not "
    "shrink (they are 0.4% apart). In the picture lines are eigenvalues and marks are measured.",
    "**Plain SGD** without a correction has exactly 2 sin(π / (2 (2τ + 1))) / h, as in the first row of momentum 0.",
    "**What it says:** dividing the rate by τ makes the limit nearly the same for every staleness, so one rate fits "
    "all stages. Without momentum looking ahead by τ updates hurts, and by one update it hurts at a small staleness "
    "and raises the limit by less than a tenth at a large one (c = m and spike compensation are then no correction at "
    "all). With momentum looking ahead helps, the more the larger the momentum, and less and less with the staleness; "
    "as far as in the last two rows it hurts at momentum 0.9 and a staleness of 15, and by 2τ a little at 7. "
    "A stable rate is not a good rate: this page is about where training diverges, not about how well it trains.",
    "**What is not here.** β at stage k divides the limit of no correction by β^(K-k). T1 ends, and its limit is then "
    "that of no correction. So is T2's: the gradient of a parabola depends on the activations alone, which are those "
    "of the forward pass. DC-ASGD adds a product of gradients and distances, which vanishes for small errors, so near "
    "the minimum its limit is that, too. Gap-Aware and the cosine gate multiply gradients by a factor that depends on "
    "the path and not on its scale, so there are no eigenvalues, and their limits were not measured. NAdam, Muon and "
    "basis rotation divide gradients by their size, so the curvature cancels: at a constant rate errors neither grow "
    "without end nor vanish.",
)


def table(lines: Lines, m: float) -> str:
    """The rows of one momentum."""

    def cell(arm: str, tau: int) -> str:
        line = lines.get(f"{arm}-m{m:g}-tau{tau}")
        return f"{line['eigenvalues']:.3f} ({line['measured']:.3f})" if line else ""

    rows = ([words, *(cell(arm, tau) for tau in TAUS)] for arm, words in ARMS.items())
    return f"## Momentum {m:g}\n\n" + markdown.table(["", *(f"τ = {tau}" for tau in TAUS)], rows)


def document(lines: Lines) -> str:
    """The page of results: a table per momentum, the picture, and how both were found."""
    parts = [
        f"![The largest stable rate over the staleness]({NAME}.png)",
        *(table(lines, m) for m in MOMENTA),
        *WORDS,
        markdown.origin(lines),
    ]
    return "\n\n".join(parts)


def picture(lines: Lines, path: Path) -> None:
    from experiments.limits import limits_picture

    limits_picture.draw(
        lambda arm, m, tau: lines.get(f"{arm}-m{m:g}-tau{tau}"), ARMS, MOMENTA, TAUS, path
    )  # fmt: skip


TABLE = Table(
    name=NAME,
    summary="The largest stable learning rate of a parabola by staleness, momentum and correction",
    title="How large a rate late gradients allow",
    runs=GRID,
    document=document,
    picture=picture,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
