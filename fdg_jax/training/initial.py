"""`--init-from RUN|FILE`: a new run begins with the weights and statistics of another network.

Only what belongs to the network is taken, by the names of its blocks. So the other run may have had any K, split,
method, optimizer and version. Optimizer, learning rate and the order of the batches begin anew.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from fdg_jax.arrays import shown
from fdg_jax.checkpoint.weights import HASH, load_weights
from fdg_jax.errors import BadInput
from fdg_jax.runs.run_files import CONFIG, there
from fdg_jax.training import load_run

Variables = Mapping[str, Any]
CHOSEN = re.compile(r"(.+)@(\d+|best)", re.S)


class InitialWeights:
    """The weights and statistics that a run begins with.

    about: from where, and the sha256 of the parameters; of a run also after which batch (`step`) and whether the
        batches in flight had been used (`drained`). {} until they are read.

    Arguments:
        given: the value of --init-from: a run directory, RUN@STEP or RUN@best for one of its checkpoints, or a file of
            weights.

    Raises:
        BadInput: there is no such run or file.
    """

    def __init__(self, given: str):
        self.given, self.path, self.which, self.about = given, Path(given), None, {}
        if not os.path.lexists(given) and (found := CHOSEN.fullmatch(given)):
            self.path, self.which = Path(found[1]), found[2] if found[2] == "best" else int(found[2])
        if not self.path.is_file() and not there(self.path / CONFIG):
            fact = f"--init-from {given}: {self.path} is no file of weights and holds no run ({CONFIG} is not there)"
            raise BadInput(f"{fact}. Give RUN, RUN@STEP, RUN@best, or a file that fdg_jax.export wrote.")

    def read(self, own: Variables, model: str) -> Variables:
        """The variables of the whole network.

        Arguments:
            own: the network's first variables, which have its shapes and dtypes. model: its name, for the message.

        Raises:
            BadInput: they are of another network, there is no such checkpoint, or a file is damaged.
        """
        try:
            found = self.of_file() if self.path.is_file() and self.which is None else self.of_run()
        except BadInput as error:
            raise BadInput(f"--init-from {self.given}: {error}") from None
        self.check(found, own, model)
        return found

    def of_file(self) -> Variables:
        """The variables in a file of weights."""
        weights = load_weights(self.path)
        self.about = {"from": self.given, HASH: weights.about[HASH]}
        return weights.variables

    def of_run(self) -> Variables:
        """The variables of a run, which `python -m fdg_jax.evaluate` evaluates."""
        trained, _ = load_run.read(self.path, self.which, as_it_ran=False)
        self.about = {"from": self.given, **{name: trained.about[name] for name in ("step", "drained", HASH)}}
        return trained.variables

    def check(self, found: Variables, own: Variables, model: str) -> None:
        """Raises BadInput where the variables are of another network."""
        theirs, ours = ({name: shown(leaf) for name, leaf in leaves(tree).items()} for tree in (found, own))
        other = [name for name in (ours | theirs) if ours.get(name) != theirs.get(name)]
        if other:
            there, here = (shapes.get(other[0], "absent") for shapes in (theirs, ours))
            fact = f"--init-from {self.given}: it has {size(found)}, and {model} has {size(own)}"
            raise BadInput(f"{fact}; {other[0]} is {there} there and {here} here. Train the network that it is of.")

    def line(self) -> str:
        """A line for the opening of the run."""
        step = self.about.get("step")
        drained = "every batch used" if self.about.get("drained") else "batches in flight not used"
        return f"weights    of {self.path}{'' if step is None else f' after batch {step:,}, {drained}'}"


def leaves(tree: Variables) -> dict[str, Any]:
    """The arrays of a tree by their paths."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dict(tree))}


def size(tree: Variables) -> str:
    """The size of a network in words."""
    params = tree.get("params", {})
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters in {len(params)} blocks"
