"""Files of one's own, by path: methods, corrections, models and data sets, folders of images and files of arrays."""

import re
import shutil

import numpy as np
import pytest
from cifar_processes import finish, printed, read, started
from image_files import photo, write
from test_docs import shown

from fdg_jax import cli, compare, data
from fdg_jax.errors import BadInput
from fdg_jax.experiments import cifar
from fdg_jax.training.trained import load_run

NAMES = ("still_first", "smooth", "flat", "mine")
WORDS = "--method ./still_first.py --still 2 --correct ./smooth.py,rate --model ./flat.py --dataset ./mine.py"
FEW = ["--batch-size", "4", "--epochs", "1", "--no-tensorboard", "--data-dir", "data", "--run-dir"]
COMMAND = ("-m", "fdg_jax.experiments.cifar")
ARRAYS = {"x_train": np.arange(24 * 64, dtype=np.uint8).reshape(24, 8, 8), "y_train": np.arange(24)[:, None] % 3}
ARRAYS |= {"x_test": ARRAYS["x_train"][:9], "y_test": ARRAYS["y_train"][:9]}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with the files that docs/extending.md shows, and a run of all of them: four batches, two processes."""
    root = tmp_path_factory.mktemp("own")
    for name, word in zip(NAMES, ("StandsStill", "smoothing: float", "NAMES =", "def load"), strict=True):
        (root / f"{name}.py").write_text(shown("docs/extending.md", word))
    (root / "data").mkdir()
    names = {"x_train": "train_images", "y_train": "train_labels", "x_test": "test_images", "y_test": "test_labels"}
    images = {names[name]: array[..., None] if name[0] == "x" else array[:, 0] for name, array in ARRAYS.items()}
    np.savez(root / "data" / "mine.npz", **images)
    launch = ("-m", "fdg_jax.launch", "--processes", "2", "--", *COMMAND)
    printed(*launch, *WORDS.split(), "--steps", "4", *FEW, "run", cwd=root)
    return root


@pytest.mark.slow
def test_a_run_keeps_its_own_files_and_goes_on_with_their_copies_where_they_are_trusted(own, tmp_path):
    config, run = read(own / "run" / "config.json"), tmp_path / "elsewhere"
    assert [config[name] for name in ("method", "correct", "model", "dataset")] == [
        "still_first", "smooth,rate", "flat", "mine",
    ]  # fmt: skip
    assert {name: about["path"] for name, about in config["code"].items()} == {name: f"./{name}.py" for name in NAMES}
    assert (config["still"], config["code"]["still_first"]["has"]) == (2, ["still"])
    assert "--method ./still_first.py" in (own / "run" / "report.html").read_text()
    for name in NAMES:
        assert (own / "run" / "code" / f"{name}.py").read_bytes() == (own / f"{name}.py").read_bytes()
    shutil.copytree(own / "run", run)
    again = (*COMMAND, "--run-dir", str(run), "--resume", "--steps", "5", "--data-dir", str(own / "data"))
    printed(*again, "--trust-code", cwd=tmp_path)
    out = printed("-m", "fdg_jax.evaluate", str(run), "--trust-code", cwd=tmp_path)
    assert f"test error {read(run / 'summary.json')['test_error_percent']:.2f}%" in out
    (tmp_path / "flat.py").write_text("NAMES = {'flat': {}}\nblocks = print")
    code, _, err = finish(started(*again, "--trust-code", "--model", "./flat.py", cwd=tmp_path))
    assert code == 2 and re.search(r"\./flat\.py is not the file that .* was made with\. Restore it", err)


@pytest.mark.slow
def test_a_run_directory_executes_nothing_unasked(own, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(own / "run", run)
    for name in NAMES:
        (run / "code" / f"{name}.py").write_text("raise SystemExit('executed')")
    with pytest.raises(BadInput, match=r"user's own code, .*code/still_first\.py.*add --trust-code"):
        load_run(run)
    assert cifar.main(["--run-dir", str(run), "--resume"]) == 2
    assert cifar.main(["--config", str(run / "config.json")]) == 2
    with pytest.raises(BadInput, match=r"still_first\.py is not the file that .* its sha256 differs"):
        load_run(run, trust_code=True)
    assert compare.main([str(run)]) == 0
    assert re.search(r"still_first\[\w{7} still=2\], K=2", capsys.readouterr().out)


@pytest.mark.slow
def test_a_sweep_passes_files_of_ones_own_on(own):
    words = [*WORDS.replace("--method ./still_first.py ", "").replace("--still 2 ", "").split(), "--steps", "1", *FEW]
    printed(*COMMAND, *words, "sweep", "--sweep", "method=./still_first.py,fdg", cwd=own)
    assert read(own / "sweep" / "method-still_first" / "summary.json")["method"] == "still_first"
    assert read(own / "sweep" / "method-fdg" / "summary.json")["method"] == "fdg"


@pytest.mark.parametrize(("flag", "name", "text", "said"), [
    ("--method", "none", None, r"none\.py cannot be read: No such file"),
    ("--model", "broken", "def f(:", r"broken\.py cannot be executed: SyntaxError: .*line 1"),
    ("--method", "empty", "", r"empty\.py has no METHOD of type Method"),
    ("--correct", "empty", "", r"empty\.py has no CORRECTION of type CorrectionSpec"),
    ("--model", "empty", "", r"empty\.py has no NAMES with 'empty'"),
    ("--dataset", "empty", "", r"empty\.py has no function load"),
    ("--model", "resnet8", "", r"resnet8\.py: there is a model resnet8 already\. Give the file another name"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(flag, name, text, said, tmp_path):
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(BadInput, match=said):
        cli.parse([flag, str(tmp_path / f"{name}.py")], "command")


@pytest.mark.slow
def test_a_folder_of_images_is_a_data_set_wherever_it_lies(own, tmp_path):
    for number in range(12):
        folder = tmp_path / "mine" / ("train", "val")[number > 7] / ("cat", "dog")[number % 2]
        write(folder / f"{number}.png", photo(number, (20, 16)))
    run, words = tmp_path / "run", ("--model", "./flat.py", "--steps", "1", *FEW[:5])
    printed(*COMMAND, "--dataset", str(tmp_path / "mine"), *words, "--run-dir", str(run), cwd=own)
    assert (read(run / "config.json")["inputs"]["shape"], read(run / "config.json")["test_size"]) == ([16, 20, 3], 4)
    moved = (tmp_path / "mine").rename(tmp_path / "moved")
    out = printed("-m", "fdg_jax.evaluate", str(run), "--data-dir", str(moved), "--trust-code")
    assert f"test error {read(run / 'summary.json')['test_error_percent']:.2f}% of 4 images" in out
    write(moved / "train" / "cat" / "0.png", photo(0, (30, 16)))
    assert data.load(str(moved)).shape == (224, 224, 3)  # of several sizes: as ImageNet


@pytest.mark.slow
def test_a_file_of_arrays_is_a_data_set(own, tmp_path):
    np.savez(own / "arrays.npz", **ARRAYS)
    words = ("--model", "./flat.py", "--steps", "1", *FEW[:5], "--run-dir", str(tmp_path))
    printed(*COMMAND, "--dataset", "arrays.npz", *words, cwd=own)
    config = read(tmp_path / "config.json")
    assert (config["dataset"], config["inputs"]["shape"], config["inputs"]["classes"]) == ("arrays.npz", [8, 8, 1], 3)


@pytest.mark.parametrize(("changed", "said"), [
    ({"x_train": ARRAYS["x_train"] / 255}, r"train_images is float64\[24, 8, 8, 1\]\. Images are uint8"),
    ({"x_train": np.array([{}], object)}, "cannot be loaded when allow_pickle=False"),
    ({"y_test": np.arange(8)}, r"test_labels is int32\[8\]\. Labels are int32\[N\], one for each image"),
])  # fmt: skip
def test_arrays_that_are_no_images_are_refused(changed, said, tmp_path):
    np.savez(tmp_path / "mine.npz", **{**ARRAYS, **changed})
    with pytest.raises(BadInput, match=said):
        data.load(str(tmp_path / "mine.npz"))
