"""GPT-2's weights: from files with Hugging Face's names, in K stages, and out again, with the same logits."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fdg_jax import export, gpt2
from fdg_jax.experiments import language_model
from fdg_jax.training import lifecycle

V, WIDTH, HEADS, LAYERS, LONGEST, T = 256, 32, 4, 2, 24, 16
MODEL = f"--model transformer{LAYERS}x{WIDTH} --positions learned --tied --norm layer --biases --heads {HEADS}"
SHORT = f"{MODEL} --block-size {T} --train-size 2 --batch-size 2 --epochs 1 --evaluate-every 0 --no-tensorboard"
TOKENS = np.random.default_rng(1).integers(0, V, (2, T)).astype(np.uint8)
CLOSE = {"rtol": 0, "atol": 1e-5}  # logits of order 1, in float32


def random_weights(prefix=""):
    """Arrays with GPT-2's names and shapes, and the masks that old files have."""
    random, found = np.random.default_rng(0), {}
    matrices = {"attn.c_attn": 3 * WIDTH, "attn.c_proj": WIDTH, "mlp.c_fc": 4 * WIDTH}
    for n in range(LAYERS):
        for name, out in matrices.items():
            found |= {f"h.{n}.{name}.weight": (WIDTH, out), f"h.{n}.{name}.bias": (out,)}
        found |= {f"h.{n}.mlp.c_proj.weight": (4 * WIDTH, WIDTH), f"h.{n}.mlp.c_proj.bias": (WIDTH,)}
        found |= {f"h.{n}.{norm}.{part}": (WIDTH,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
        found |= {f"h.{n}.attn.bias": (1, 1, LONGEST, LONGEST), f"h.{n}.attn.masked_bias": (1,)}
    found |= {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,), "wte.weight": (V, WIDTH), "wpe.weight": (LONGEST, WIDTH)}
    return {prefix + name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in found.items()}


def logits(weights, tokens):
    """GPT-2's forward pass in NumPy, float64: tokens [b, T] -> [b, T, vocabulary]."""
    w = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in weights.items()}
    b, length = tokens.shape

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return unit * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:length]
    for n in range(LAYERS):
        qkv = linear(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn")
        q, k, v = (a.reshape(b, length, HEADS, -1).swapaxes(1, 2) for a in np.split(qkv, 3, -1))
        scores = np.exp(q @ k.swapaxes(2, 3) / (WIDTH / HEADS) ** 0.5) * np.tri(length)
        y = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(b, length, WIDTH)
        x = x + linear(y, f"h.{n}.attn.c_proj")
        y = linear(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))
        x = x + linear(y, f"h.{n}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def short(folder):
    """The words of a short run on a short text."""
    (folder / "text").write_bytes(bytes(range(1, 256)) * 4)
    return [*SHORT.split(), "--warmup-steps", "0", "--text", str(folder / "text")]


def begun(monkeypatch, file, *words):
    """The pipeline that a command was about to train with the weights of a file."""
    jobs = []

    def stop(run, *_):
        yield jobs.append(run.job)
        return 0

    monkeypatch.setattr(lifecycle, "train", stop)
    given = [*short(file.parent), *words, "--init-from", str(file), "--run-dir", str(file.parent / "run")]
    assert language_model.main(given) == 0
    return jobs[0]


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_three_stages_with_published_weights_are_gpt2_and_so_is_what_they_export(prefix, tmp_path, monkeypatch):
    weights = random_weights(prefix)
    save_file(weights, tmp_path / "gpt2")
    job = begun(monkeypatch, tmp_path / "gpt2", "--K", "3")
    assert [stage.k for stage in job.pipeline.engine.stages.values()] == [1, 2, 3]
    np.testing.assert_allclose(job.pipeline.predict(TOKENS), logits(weights, TOKENS), **CLOSE)
    said = gpt2.save(tmp_path / "out", job.options, job.pipeline.export(whole=True))
    assert said == f"GPT2Config(vocab_size={V}, n_positions={T}, n_embd={WIDTH}, n_layer={LAYERS}, n_head={HEADS})"
    found = load_file(tmp_path / "out")
    kept = {name.removeprefix(prefix): array for name, array in weights.items() if ".attn.bias" not in name}
    kept = {name: array[:T] if name == "wpe.weight" else array for name, array in kept.items() if "masked" not in name}
    assert found.keys() == kept.keys()
    for name, array in kept.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
def test_a_run_is_exported_for_transformers_and_one_of_another_network_is_not(tmp_path, capsys):
    save_file(random_weights(), tmp_path / "gpt2")
    run = f"--K 1 --steps 1 --init-from {tmp_path / 'gpt2'} --run-dir {tmp_path / 'run'}"
    assert language_model.main([*short(tmp_path), *run.split()]) == 0
    assert export.main([str(tmp_path / "run"), "--to", str(tmp_path / "out"), "--format", "gpt2"]) == 0
    assert "GPT2Config(" in capsys.readouterr().out and "h.1.mlp.c_proj.bias" in load_file(tmp_path / "out")
    other = f"--norm rms --no-tied --steps 1 --K 1 --run-dir {tmp_path / 'other'}"
    assert language_model.main([*short(tmp_path), *other.split()]) == 0
    assert export.main([str(tmp_path / "other"), "--to", str(tmp_path / "no"), "--format", "gpt2"]) == 2
    assert "is not a GPT-2: it has tied=False (not True), norm='rms' (not 'layer')." in capsys.readouterr().err


def without(name):
    return {key: value for key, value in random_weights().items() if key != name}


def other(name, *shape):
    return random_weights() | {name: np.zeros(shape, np.float32)}


REFUSED = {
    "has a vocabulary of 300 tokens, but the data have one of 256.": other("wte.weight", 300, WIDTH),
    "has 8 positions, but a block has 16. Use --block-size 8": other("wpe.weight", 8, WIDTH),
    "holds neither weights of this library nor of GPT-2: it has no wte.weight": without("wte.weight"),
    "nor of GPT-2: GPT-2 has no h.0.attn.rotary": other("h.0.attn.rotary", 3),
    "['bias'] is absent there and float32[128] here": without("h.1.mlp.c_fc.bias"),
}


@pytest.mark.slow
def test_weights_of_another_vocabulary_length_or_network_are_refused_in_one_sentence(tmp_path, capsys):
    for said, weights in REFUSED.items():
        save_file(weights, tmp_path / "gpt2")
        words = f"--K 1 --init-from {tmp_path / 'gpt2'} --run-dir {tmp_path / 'run'}"
        assert language_model.main([*short(tmp_path), *words.split()]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1, err


@pytest.mark.slow
def test_transformers_gives_and_takes_the_same_logits(tmp_path, monkeypatch):
    """Run it with `pip install --target /tmp/hf torch transformers` and PYTHONPATH=/tmp/hf."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "initializer_range": 0.2}

    def theirs(model):
        with torch.no_grad():
            return model.eval()(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, n_positions=LONGEST, **sizes))
    model.save_pretrained(tmp_path / "theirs")
    job = begun(monkeypatch, tmp_path / "theirs" / "model.safetensors", "--K", "3")
    np.testing.assert_allclose(job.pipeline.predict(TOKENS), theirs(model), **CLOSE)
    (tmp_path / "ours").mkdir()
    gpt2.save(tmp_path / "ours" / "model.safetensors", job.options, job.pipeline.export(whole=True))
    transformers.GPT2Config(vocab_size=V, n_positions=T, **sizes).save_pretrained(tmp_path / "ours")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    np.testing.assert_allclose(theirs(again), theirs(model), **CLOSE)
