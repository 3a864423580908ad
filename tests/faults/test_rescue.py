"""Whatever ends a training leaves a checkpoint of whole batches, or none: never one of a half-done state."""


import pytest
from fault_runs import summary
from toys import WORDS, small_command

from fdg_jax import api
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.experiments import cifar
from fdg_jax.training import loop

AT = 5  # the batch that something happens at


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_command(monkeypatch)


def run(path, *more: str) -> int:
    return cifar.main([*WORDS.split(), "--run-dir", str(path), "--log-every", "1", *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        small_command(patch)
        assert run(path) == 0
    return summary(path)


def at_batch(monkeypatch, where, name, fault) -> None:
    """Calls `fault` in place of the AT-th call of a function."""
    work, calls = getattr(where, name), []

    def counted(*given):
        calls.append(given)
        return fault() if len(calls) == AT else work(*given)

    monkeypatch.setattr(where, name, counted)


def raising(error: BaseException):
    def fault():
        raise error

    return fault


@pytest.mark.slow
def test_an_exception_between_two_batches_leaves_a_checkpoint_that_goes_on_exactly(
    whole, tmp_path, monkeypatch, capsys
):
    path, error = tmp_path / "run", RuntimeError("the loader is gone")
    with monkeypatch.context() as patch:
        at_batch(patch, loop.InMemory, "next", raising(error))
        assert run(path) == 1
    err = capsys.readouterr().err
    assert err.count("Traceback") == 1  # a defect is still shown
    said = err[err.index("error: training was ended by") :]
    assert type(error).__name__ in said and f"A checkpoint after batch {AT - 1} was written." in said
    newest = run_checkpoints.path_of(path / "checkpoints", AT - 1)
    assert f"The newest checkpoint is {newest}. To go on from there:\n" in said
    assert f"--run-dir {path} --resume\n" in said
    assert (path / "report.html").exists() and not (path / "summary.json").exists()
    assert cifar.main(["--run-dir", str(path), "--resume"]) == 0
    assert summary(path)["final_state_sha256"] == whole["final_state_sha256"]


@pytest.mark.slow
def test_an_exception_within_a_dispatch_leaves_the_checkpoint_before(whole, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        train, calls = api.Pipeline.train, []

        def interrupted(self, *given):
            calls.append(given)
            train(self, *given)  # the pipeline has the batch, and nobody knows
            if len(calls) == AT:
                raise RuntimeError("within the dispatch")

        patch.setattr(api.Pipeline, "train", interrupted)
        assert run(path, "--checkpoint-every", "2") == 1
    err = capsys.readouterr().err
    assert f"The work after batch {AT - 1} was interrupted halfway, so the state was not saved." in err
    assert [each.name for each in run_checkpoints.stored(path / "checkpoints")] == ["step-000000002", "step-000000004"]
    assert cifar.main(["--run-dir", str(path), "--resume"]) == 0
    assert summary(path)["final_state_sha256"] == whole["final_state_sha256"]
