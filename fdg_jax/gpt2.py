"""GPT-2's weights, from and to safetensors files with Hugging Face's names: `--init-from FILE`, `export --format gpt2`.

Such a file has the arrays of `--model gpt2` under other names, such as `h.0.attn.c_attn.weight` [in, out], with or
without `transformer.` in front. The masks that some files have (`attn.bias`) are not weights and are left out. A file
does not say how many heads there are; the network that is trained decides.

A block of text may be shorter than the file's table of positions. Then only the first rows of the table are taken,
since no token of such a block is at a later position. An exported file has as many positions as a block has tokens.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import save as as_safetensors

from fdg_jax import durable, models
from fdg_jax.checkpoint import weights
from fdg_jax.config import Config, model_options
from fdg_jax.errors import BadInput
from fdg_jax.split import block_name

MODULES = {
    "attention_norm": "ln_1", "attention/qkv": "attn.c_attn", "attention/out": "attn.c_proj",
    "mlp_norm": "ln_2", "wide": "mlp.c_fc", "narrow": "mlp.c_proj",
}  # fmt: skip
MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
LAYER = re.compile(r"h\.(\d+)\..*")


def names(layers: int) -> dict[str, str]:
    """{our name of a parameter: GPT-2's name}, for this number of layers."""
    found = {f"{block_name(0)}/table": "wte.weight", f"{block_name(0)}/positions": "wpe.weight"}
    modules = {f"{block_name(n + 1)}/{ours}": f"h.{n}.{its}" for n in range(layers) for ours, its in MODULES.items()}
    for ours, its in {**modules, f"{block_name(layers + 1)}/norm": "ln_f"}.items():
        found[f"{ours}/{'scale' if ours.endswith('norm') else 'kernel'}"] = f"{its}.weight"
        found[f"{ours}/bias"] = f"{its}.bias"
    return found


def load(path: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """The variables {"params": ...} in a file, float32, with the positions that a block of text has.

    own: the variables of the network that is trained. Their shapes are compared by the caller, except for the number of
        tokens and of positions.

    Raises BadInput if the file is not GPT-2's, has another vocabulary, or fewer positions than a block has tokens.
    """
    held = {name.removeprefix("transformer."): array for name, array in weights.read(path, None)[0].items()}
    found = {name: np.asarray(array, np.float32) for name, array in held.items() if not MASK.fullmatch(name)}
    table = found.get("wte.weight")
    if table is not None and np.array_equal(found.get("lm_head.weight", ()), table):
        del found["lm_head.weight"]
    known = names(1 + max((int(layer[1]) for name in found if (layer := LAYER.fullmatch(name))), default=-1))
    if table is None or (other := found.keys() - known.values()):
        fact = "it has no wte.weight" if table is None else f"GPT-2 has no {min(other)}"
        raise BadInput(f"{path} holds neither weights of this library nor of GPT-2: {fact}. Give another file.")
    params = {ours: found[its] for ours, its in known.items() if its in found}
    first = own["params"].get(block_name(0), {})
    if (here := len(first.get("table", table))) != len(table):
        fact = f"{path} has a vocabulary of {len(table):,} tokens, but the data have one of {here:,}"
        raise BadInput(f"{fact}. Encode the text with the tokenizer of these weights.")
    where = f"{block_name(0)}/positions"
    if where in params and "positions" in first:
        if (T := len(first["positions"])) > (most := len(params[where])):
            raise BadInput(f"{path} has {most:,} positions, but a block has {T:,}. Use --block-size {most} or less.")
        params[where] = params[where][:T]
    return {"params": unflatten_dict(params, sep="/")}


def save(path: str | os.PathLike[str], options: Config, variables: Mapping[str, Any]) -> str:
    """Writes the weights of a trained network under GPT-2's names.

    Returns: the call of `transformers` that makes the configuration, which the file does not have.

    Raises BadInput if the network's options are not GPT-2's, and OSError if the file cannot be written.
    """
    o = model_options(options)
    like = {**models.defaults("gpt2"), "mlp": "gelu", "qk_norm": False, "heads": o.get("heads"), "kv_heads": None}
    del like["block_size"]
    if differ := [f"{name}={o.get(name)!r} (not {value!r})" for name, value in like.items() if o.get(name) != value]:
        raise BadInput(f"{options.model} is not a GPT-2: it has {', '.join(differ)}. Leave --format out.")
    params = flatten_dict(variables["params"], sep="/")
    known = names(layers := len(variables["params"]) - 2)
    arrays = {known[name]: np.ascontiguousarray(array) for name, array in params.items()}
    durable.write(Path(path), as_safetensors(arrays, {"format": "pt"}))  # transformers requires this entry
    (V, width), T = arrays["wte.weight"].shape, len(arrays["wpe.weight"])
    heads = models.blocks(options.model, V, **o)[1].heads  # type: ignore[attr-defined]
    return f"GPT2Config(vocab_size={V}, n_positions={T}, n_embd={width}, n_layer={layers}, n_head={heads})"
