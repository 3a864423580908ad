"""Checkpoints, files of weights and result lines that somebody made up or damaged, most with the right hashes: taken as
what they say, or refused in one sentence, in less than 1 GB of memory."""

import json
import random
import resource
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from small import batches, pipeline
from spoiling import HOSTILE, RAW, spoilt_bytes, spoilt_value
from stored_runs import asked

import fdg_jax
from fdg_jax import models, split
from fdg_jax.checkpoint import folder, manifest, run_checkpoints, weights
from fdg_jax.errors import BadInput
from fdg_jax.report import comparison, results
from fdg_jax.strict_json import DECODER
from fdg_jax.training.record import Record
from fdg_jax.training.trained import Inputs, Trained

pytestmark = pytest.mark.slow

LINES = Path(__file__).parents[2] / "experiments/results/decisive.jsonl"
DATA = batches(3)
INPUTS = Inputs((8, 8, 3), "uint8", 10, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
MOST_MEGABYTES = 1000  # of memory that one file may need beyond what there was before
FILES_EACH = 100


def spoilt_arrays(rng: random.Random, arrays: dict[str, np.ndarray]) -> dict:
    """Arrays of which some have another shape, dtype or name, other values, or are gone."""
    arrays, names = dict(arrays), list(arrays)
    for name in rng.sample(names, rng.choice((1, 1, 2))):
        value, how = np.asarray(arrays.pop(name)), rng.randrange(6)
        if how == 0:
            arrays[rng.choice([*names, "", "/", "stage/1", f"{name}/x", name[:-1], "é" * 99, "a/" * 2000])] = value
        elif how == 1:
            arrays[name] = rng.choice([value[None], value.reshape(-1)[:1], np.zeros((3, 0)), np.zeros((2, 2, 2))])
        elif how == 2:
            arrays[name] = value.astype(rng.choice(["uint8", "float16", "float64", "int64", "complex64", "bool"]))
        elif how == 3 and value.dtype.kind in "fiu":
            arrays[name] = np.full_like(value, rng.choice([np.nan, np.inf, -1] if value.dtype.kind == "f" else [99]))
        elif how == 4:
            arrays[name] = value
            arrays[f"{name}{rng.choice(['/more', ' ', '2'])}"] = value
    return arrays


def resealed(folder: Path, body: str) -> None:
    """A manifest with this JSON, and the hash that it needs."""
    try:
        sha256 = manifest.content_sha256(DECODER.decode(body))
    except (ValueError, RecursionError):
        sha256 = "0" * 64
    (folder / manifest.NAME).write_text(f'{{"sha256": "{sha256}", "content": {body}}}', errors="surrogatepass")


class Strange:
    """Files of each kind as they were written, which `make` spoils and `read` reads."""

    def __init__(self, place: Path):
        self.place, self.pipeline = place, pipeline(2, DATA[0])
        for batch in DATA:
            self.pipeline.step(batch)
        self.loop = record().state()
        self.state = {**self.pipeline.state(), **{f"loop/{name}": value for name, value in self.loop.items()}}
        folder.save(place / "whole", self.state, {"data": None, "options": {}})
        folder.save_part(place / "parts", 0, self.state)
        (place / ".parts.tmp").rename(place / "unsealed")
        sealed = manifest.size_and_sha256(place / "unsealed" / "process0" / manifest.NAME)
        (place / ".parts.tmp").mkdir()
        shutil.move(place / "unsealed" / "process0", place / ".parts.tmp" / "process0")
        folder.commit_parts(place / "parts", [sealed], {"data": None})
        self.pipeline.save(place / "pipeline")
        blocks = models.blocks("resnet8", 10)
        variables = jax.device_get(split.init_whole(blocks, jax.random.key(0), INPUTS.example(1)))
        about = {"step": 7, "drained": False, "parameters_sha256": "0", "data": None}
        options = asked(model="resnet8", dataset="digits", K=2, split="3")
        Trained(options, INPUTS, variables, about).save(place / "exported")
        fdg_jax.save_weights(place / "weights", {"params": {"a": DATA[0][0], "b": [DATA[0][0], {}]}}, {"classes": 10})
        self.lines = LINES.read_text().splitlines()[:3]

    def make(self, kind: str, rng: random.Random) -> Path:
        """Writes a file of this kind; returns where it is."""
        made = self.place / "made"
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        if kind == "results":
            made = self.place / "made.jsonl"
            line = spoilt_value(rng, json.loads(self.lines[0]))
            content = "\n".join(rng.sample([line, *self.lines[1:]], 3)).encode("utf-8", "surrogatepass")
            made.write_bytes(content if rng.random() < 0.8 else spoilt_bytes(rng, content))
        elif kind == "checkpoint":
            self.make_checkpoint(made, rng)
        else:
            self.make_tensors(made, kind, rng)
        return made

    def make_checkpoint(self, made: Path, rng: random.Random) -> None:
        file_of_part, how, whole = True, rng.random(), self.place / rng.choice(["whole", "whole", "parts"])
        if how < 0.4:
            folder.save(made, spoilt_arrays(rng, self.state), {"data": None})
            return
        shutil.copytree(whole, made)
        within = made / "process0" if whole.name == "parts" and rng.random() < 0.5 else made
        if how < 0.8:
            content = json.loads((within / manifest.NAME).read_text())["content"]
            resealed(within, spoilt_value(rng, content))
        else:
            file = rng.choice(sorted(each for each in made.rglob("*") if each.is_file()))
            file.write_bytes(spoilt_bytes(rng, file.read_bytes()))
            file_of_part = file != made / manifest.NAME
            if file.name != manifest.NAME:  # and the hashes are right
                (file.parents[len(file.relative_to(within).parts) - 1] / manifest.NAME).unlink()
                listed = [[name, str(np.asarray(v).dtype), list(np.shape(v))] for name, v in sorted(self.state.items())]
                manifest.seal(within, {"arrays": listed, "about": {}})
        if within != made and file_of_part:  # the manifest above lists this one's hash
            body = json.loads((made / manifest.NAME).read_text())["content"]
            size = list(manifest.size_and_sha256(within / manifest.NAME))
            resealed(made, json.dumps({**body, "files": {f"process0/{manifest.NAME}": size}}))

    def make_tensors(self, made: Path, kind: str, rng: random.Random) -> None:
        content, how = (self.place / kind).read_bytes(), rng.random()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        if how < 0.2:
            made.write_bytes(spoilt_bytes(rng, content))
        elif how < 0.4:
            text = spoilt_value(rng, header).encode("utf-8", "surrogatepass")
            made.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        else:
            texts, arrays = header["__metadata__"], safetensors.numpy.load(content)
            del texts["sha256"]
            if how < 0.8:
                name = rng.choice([*texts, "containers", "dtypes"])
                old = texts.get(name, "{}")
                new = rng.choice([*RAW.values(), *map(json.dumps, HOSTILE), '{"a": "list"}', '{"a": "key rbg"}'])
                texts[name] = spoilt_value(rng, json.loads(old)) if old[:1] == "{" and rng.random() < 0.7 else new
                texts = {name: text.encode(errors="replace").decode() for name, text in texts.items()}
            if how > 0.7:
                arrays = {name: value.copy() for name, value in spoilt_arrays(rng, arrays).items()}
            sealed = weights.seal(arrays, texts)
            made.write_bytes(safetensors.numpy.save(arrays, {**texts, "sha256": sealed}))

    def outcome(self, kind: str, made: Path) -> str | None:
        """Why it is refused; None if it is taken."""
        try:
            self.read(kind, made)
        except BadInput as error:
            return str(error)
        return None

    def read(self, kind: str, made: Path) -> None:
        """Reads it as its users do. Raises BadInput."""
        if kind == "checkpoint":
            state, loop, _ = run_checkpoints.load(made)
            self.pipeline.restore(state)
            record().restore(loop)
        elif kind == "pipeline":
            self.pipeline.restore(fdg_jax.load(made).state)
        elif kind == "weights":
            fdg_jax.load_weights(made)
        elif kind == "exported":
            fdg_jax.load_run(made)
        else:
            found = comparison.compare(results.read(made))
            assert comparison.text(found) and comparison.page(found)


def record() -> Record:
    return Record(128, 32, 10, np.ones(8))


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    return Strange(tmp_path_factory.mktemp("strange"))


@pytest.mark.parametrize("kind", ["checkpoint", "weights", "pipeline", "exported", "results"])
@pytest.mark.cases(sample=1, hundred=4)
def test_strange_files_are_taken_or_refused_in_a_sentence(seed, kind, all_of_them, strange, tell):
    taken, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(FILES_EACH if all_of_them else 12):
        case = 1000 * seed + number
        made = strange.make(kind, random.Random(case))
        try:
            said = strange.outcome(kind, made)
            assert said is None or (20 < len(said) < 2000 and "\n" not in said)
            taken += said is None
        except BaseException as error:
            error.add_note(f"case {case}")
            raise
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert more < MOST_MEGABYTES
    tell(f"{taken} taken of {number + 1} {kind}; peak memory {before / 1024:.0f} MB before, {more:.0f} MB more")
