"""Of every N batches one is done twice: it changes nothing where the machine is sound, and finds it out where not."""

import json

import numpy as np
import pytest
from small import batches, pipeline
from toys import CALLS, WORDS, Troubled, small_command

from fdg_jax.training.feeding import Work
from fdg_jax.training.replay import NotReproduced, Replay

DATA = batches(12)


def work(step):
    return Work((1, len(DATA[step][1])), lambda pipeline: pipeline.step(DATA[step]))


def run(ours, replay, until=12, later=3):
    """What the training loop does, the check `later` batches after what was kept."""
    for step in range(until):
        if replay.kept and step >= replay.kept.step + later:
            replay.check(ours)
        if replay.wants(step, 1):
            before = ours.state()
            work(step).enter(ours)
            replay.keep(step, work(step), before, ours.state())
        else:
            work(step).enter(ours)
    replay.check(ours)
    return ours.state_sha256()


@pytest.mark.parametrize("engine", ["pipeline", pytest.param("scan", marks=pytest.mark.slow)])
def test_checks_change_no_bit_of_a_run(engine):
    plain, checked = (pipeline(2, DATA[0], engine=engine, guard=True) for _ in range(2))
    for step in range(12):
        work(step).enter(plain)
    replay = Replay(4, seed=0)
    assert run(checked, replay) == plain.state_sha256()
    assert replay.checked == 3


def test_a_bit_that_was_wrong_is_found_and_the_arrays_are_named():
    ours, replay = pipeline(2, DATA[0]), Replay(4, seed=0)
    first = replay.chosen(0)
    for step in range(first):
        work(step).enter(ours)
    before = ours.state()
    work(first).enter(ours)
    name = "stage2/state/.params['Dense_0']['bias']"
    wrong = before[name].copy()
    wrong.view(np.uint32)[0] ^= 1 << 20  # one bit of one number, as a cosmic ray might
    replay.keep(first, work(first), {**before, name: wrong}, ours.state())
    with pytest.raises(NotReproduced, match=rf"batch {first + 1}, done again .* gave other values in \d+ of \d+ arr"):
        replay.check(ours)


def test_a_stage_that_once_computes_something_else_is_found():
    stages = [Troubled(12), Troubled(5)]
    ours, replay = pipeline(2, DATA[0], stages=stages), Replay(6, seed=1)
    ours.step(DATA[0])
    ours.wait()
    before = ours.state()
    CALLS.append(lambda: 1e-6)  # once
    work(1).enter(ours)
    ours.wait()
    assert not CALLS
    replay.keep(1, work(1), before, ours.state())
    with pytest.raises(NotReproduced, match="batch 2, done again"):
        replay.check(ours)


def test_one_batch_of_every_window_is_chosen_by_the_seed():
    for seed in range(3):
        replay = Replay(5, seed)
        chosen = [step for step in range(40) if replay.wants(step, 1)]
        assert [step // 5 for step in chosen] == list(range(8))
        assert chosen == [Replay(5, seed).chosen(window) for window in range(8)]
    assert len({tuple(Replay(50, seed).chosen(w) for w in range(4)) for seed in range(8)}) == 8
    windows = [step for step in range(0, 40, 8) if Replay(40, 0).wants(step, 8)]
    assert windows == [Replay(40, 0).chosen(0) // 8 * 8]  # of dispatches of 8 batches the one that holds it


@pytest.mark.slow
def test_the_command_ends_with_the_same_hashes_or_with_exit_code_1(tmp_path, monkeypatch, capsys):
    from fdg_jax.experiments import cifar
    from fdg_jax.training import replay

    small_command(monkeypatch)
    checked, check = [], Replay.check
    monkeypatch.setattr(Replay, "check", lambda self, made: (check(self, made), checked.append(self.checked)))
    hashes = []
    for n in ("0", "4"):
        path = tmp_path / n
        words = [*WORDS.split(), "--replay-check", n, "--run-dir", str(path)]
        assert cifar.main(words) == 0
        hashes.append({k: v for k, v in json.loads((path / "summary.json").read_text()).items() if "sha256" in k})
    assert hashes[0] == hashes[1] and checked == [1, 2]
    values = iter("ab")
    monkeypatch.setattr(replay, "hashes", lambda state: {"stage1/what": next(values)})
    path = tmp_path / "wrong"
    assert cifar.main([*WORDS.split(), "--replay-check", "8", "--run-dir", str(path)]) == 1
    err = capsys.readouterr().err
    assert "error: the machine or a program did not compute the same twice: batch " in err and "stage1/what" in err
    assert "Traceback" not in err and not (path / "summary.json").exists() and not (path / "checkpoints").exists()
