"""Samples of language models: drawn as the scores say, the same for the same seed, in a run and by the command."""

import json

import numpy as np
import pytest
from cifar_processes import printed

from fdg_jax import sample
from fdg_jax.config import Config
from fdg_jax.data.sampling import codec_of, continued, start_of
from fdg_jax.errors import BadInput
from fdg_jax.experiments import language_model

LOGITS = np.log([0.5, 0.3, 0.15, 0.05])


def counting(block):
    """After token n comes n + 1, for sure."""
    return 100.0 * np.eye(10)[(block + 1) % 10]


def test_a_sample_follows_the_scores_also_beyond_a_block():
    assert continued(counting, [3, 4], 12, T=4) == [*range(3, 10), *range(7)]
    seen = []
    continued(lambda block: seen.append(block.tolist()) or counting(block), [1, 2], 3, T=3)
    assert seen == [[1, 2, 0], [1, 2, 3], [2, 3, 4]]


def test_tokens_are_drawn_from_the_softmax_of_the_logits():
    def shares(**more):
        drawn = continued(lambda block: np.tile(LOGITS, (2, 1)), [0], 4000, T=2, **more)[1:]
        return np.bincount(drawn, minlength=4) / 4000

    np.testing.assert_allclose(shares(), [0.5, 0.3, 0.15, 0.05], atol=0.03)  # 4 standard deviations of 4,000 draws
    np.testing.assert_allclose(shares(top_k=2), [0.625, 0.375, 0, 0], atol=0.03)
    half = np.array([0.5, 0.3, 0.15, 0.05]) ** 2  # a temperature of 1/2 squares probabilities
    np.testing.assert_allclose(shares(temperature=0.5), half / half.sum(), atol=0.03)
    np.testing.assert_array_equal(shares(temperature=0.0), [1, 0, 0, 0])
    np.testing.assert_array_equal(shares(seed=3), shares(seed=3))
    assert (shares(seed=3) != shares(seed=4)).any()


def test_text_is_bytes_or_numbers_of_tokens():
    of_bytes, of_numbers = codec_of(Config(dataset="text")), codec_of(Config(dataset="tokens", tokens="no/such.bin"))
    assert of_bytes.decode(start_of("no\u00efve", of_bytes, 256)) == "no\u00efve"
    assert of_numbers.decode(start_of("5 17", of_numbers, 18)) == "5 17"
    for text, said in (("five", "Write them with spaces"), ("", "has 0 tokens"), ("18", "from 0 to 17")):
        with pytest.raises(BadInput, match=said):
            start_of(text, of_numbers, 18)


@pytest.mark.slow
def test_the_command_continues_a_text_as_the_run_did(tmp_path, capsys):
    words = "--K 2 --model transformer2x32 --block-size 16 --batch-size 4 --train-size 40 --epochs 2 --no-tensorboard"
    drawn = ["--temperature", "0.7", "--top-k", "20", "--seed", "5"]
    run = str(tmp_path / "run")
    assert language_model.main([*words.split(), "--sample", "The ", *drawn, "--run-dir", run]) == 0
    out = capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    samples = [line["sample"] for line in lines if "sample" in line]
    assert len(samples) == 2 and all(each.startswith("The ") and f"sample: {each}" in out for each in samples)
    again = ["-m", "fdg_jax.sample", run, "--sample", "The ", "--length", "100"]
    assert samples[-1] in printed(*again) and samples[-1] not in printed(*again, "--seed", "6")
    assert sample.main([run, "--temperature", "-1"]) == 2 and "--temperature -1" in capsys.readouterr().err
    assert language_model.main([*words.split(), "--sample", "", "--run-dir", str(tmp_path / "new")]) == 2
    assert "has 0 tokens" in capsys.readouterr().err and not (tmp_path / "new").exists()
