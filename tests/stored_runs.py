"""Run directories that hold only a config."""

import dataclasses
from pathlib import Path

from fdg_jax.config import FIELDS, Config
from fdg_jax.runs import run_files


def asked(**changed) -> Config:
    return dataclasses.replace(Config(), **changed)


def stored_run(path: Path, **changed) -> Config:
    """A run directory that holds only a config."""
    options = asked(**changed)
    path.mkdir(exist_ok=True)
    values = {name: getattr(options, name) for name in FIELDS if name != "resume"}
    rest = {"asked": values, "note": "", "devices": ["cpu:0"], "versions": {}}
    run_files.write_json(path / "config.json", {**values, **rest})
    return options
