"""docs/adding-*.md: the files that they show work where the pages say that they go."""

import re
import sys
from importlib import import_module
from pathlib import Path

import jax
import numpy as np
import pytest
from small import batches, pipeline

from fdg_jax import data, methods, models, split, transport
from fdg_jax.engine import transports
from fdg_jax.errors import BadInput
from fdg_jax.schedule.running import validate

DOCS = Path(__file__).resolve().parent.parent / "docs"


def shown(page: str, word: str) -> str:
    """The one program of a page that has that word."""
    programs = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.S | re.M)
    (found,) = [text for text in programs if word in text]
    return found


@pytest.fixture
def put(tmp_path, monkeypatch):
    """put(package, name, text): makes the text the file `name`.py of a folder that is searched as the package is."""

    def write(package, name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)

    return write


def test_the_schedule_shown_is_the_one_of_ddg(put):
    put(methods, "shown_ddg", shown("adding-a-method.md", "def forward_locked"))
    shown_ddg = import_module("fdg_jax.methods.shown_ddg").METHOD
    for K in (1, 2, 3, 5):
        own, ours = shown_ddg.schedule(K), methods.find("ddg").schedule(K)
        validate(own, 3 * K)
        assert [own.tick(t, None) for t in range(1, 20)] == [ours.tick(t, None) for t in range(1, 20)]
        assert (own.behind, own.ticks(7)) == (ours.behind, ours.ticks(7))


def largest_change(before, after):
    return max(float(abs(np.asarray(b) - a).max()) for a, b in zip(before, after, strict=True))


def test_the_method_with_a_stage_of_its_own_stands_still_and_then_trains(put):
    put(methods, "still_first", shown("adding-a-method.md", "still_first"))
    seen = batches(8)
    made = pipeline(2, seen[0], method="still_first", still=4)

    def moved(some):
        before = jax.tree.map(np.asarray, [stage["params"] for stage in made.params])
        for batch in some:
            made.step(batch)
        made.drain()
        after = [stage["params"] for stage in made.params]
        return [largest_change(*map(jax.tree.leaves, pair)) for pair in zip(before, after, strict=True)]

    still, moving = moved(seen[:4]), moved(seen[4:])
    assert still[0] < moving[0] / 10 and still[1] > 10 * still[0]  # weight decay acts on stage 1 all the same


def test_the_data_set_is_read_and_a_missing_file_is_refused(put, tmp_path):
    put(data.sets, "mine", shown("adding-a-data-set.md", "def load"))
    with pytest.raises(BadInput, match=r"mine\.npz does not exist\. .*--data-dir"):
        data.load("mine", tmp_path)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (2, 12, 8, 8, 3), np.uint8), np.arange(24).reshape(2, 12) % 4
    np.savez(tmp_path / "mine.npz", train_images=images[0], train_labels=labels[0], test_images=images[1],
             test_labels=labels[1])  # fmt: skip
    found = data.load("mine", tmp_path)
    assert (found.name, found.classes, found.shape, found.train_labels.dtype) == ("mine", 4, (8, 8, 3), np.int32)
    np.testing.assert_allclose(found.mean, images[0].mean((0, 1, 2)) / 255, rtol=1e-12)


def test_the_model_is_built_and_cut(put):
    put(models, "mine", shown("adding-a-model.md", "NAMES ="))
    models._families.cache_clear()
    try:
        assert "mine" in models.names()
        blocks = models.blocks("mine", 10)
        assert len(split.stages(blocks, [1])) == len(blocks) == 2
        whole = split.whole(blocks)
        x = jax.ShapeDtypeStruct((3, 8, 8, 1), np.float32)
        y, _ = jax.eval_shape(lambda key, x: whole.init_with_output(key, x, train=False), jax.random.key(0), x)
        assert y.shape == (3, 10)
    finally:
        models._families.cache_clear()


def test_the_transport_shown_rounds_what_goes_between_stages_and_nothing_else(put, monkeypatch):
    put(transport, "in_bfloat16", shown("adding-a-transport.md", "class InBfloat16"))

    def losses():
        seen = batches(6)
        made = pipeline(2, seen[0])
        for batch in seen:
            made.step(batch)
        return np.array([each.loss for each in made.losses(wait=True)])

    exact = losses()
    monkeypatch.setattr(transports, "InProcess", import_module("fdg_jax.transport.in_bfloat16").InBfloat16)
    rounded = losses()
    np.testing.assert_allclose(rounded, exact, rtol=0.02)  # 8 bits of mantissa are 0.4% of every activation
    assert (rounded != exact).any()
