"""Images a pipeline can be trained on, whole and in memory, as uint8 arrays, or decoded on the way.

A data set is one file in `sets/`: the file's name is the value of `--dataset` on the command line, and the
file has one function, `load(data_dir) -> Dataset`. One that memory does not hold is a file in `streams/` with
`load(data_dir) -> Stream` (see `stream`). Everything beside those folders is help for such files
(reading and writing TFDS directories, the cache of decoded arrays, downloads) or works on what they return
(`augment`). Nothing here touches a device, and nothing slow is imported before a data set needs it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil

from fdg_jax.data import sets, streams
from fdg_jax.data.dataset import Dataset
from fdg_jax.data.stream import Stream
from fdg_jax.errors import BadInput


def names() -> list[str]:
    """The data sets that are held in memory, found by looking into `sets/`."""
    return sorted(module.name for module in pkgutil.iter_modules(sets.__path__))


def stream_names() -> list[str]:
    """Those that are decoded while they are used, found by looking into `streams/`."""
    return sorted(module.name for module in pkgutil.iter_modules(streams.__path__))


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset | Stream:
    """Returns the data set `name`, of either kind.

    `data_dir` is a TFDS data directory (the one that holds `cifar10/3.0.2`). Without it, TFDS's own is used
    (`TFDS_DATA_DIR`, else `~/tensorflow_datasets`), and what isn't prepared there is downloaded into it. A
    `data_dir` given here is only read: a mistyped path should be an error, not a download.

    Raises BadInput, before anything slow, for an unknown name, a directory that can't be read or doesn't
    hold the data set, and files that are damaged or incomplete.
    """
    for folder, known in ((sets, names()), (streams, stream_names())):
        if name in known:
            return importlib.import_module(f"{folder.__name__}.{name}").load(data_dir)
    raise BadInput(f"there is no data set {name!r}. Choose one of: {', '.join([*names(), *stream_names()])}.")
