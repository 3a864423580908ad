"""The command for a GPU in small on a CPU: stopped at any moment and given again."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_fakes import until

from experiments.gpu import on_device
from experiments.harness.run_table import ROOT

# In small


@pytest.mark.slow
def test_the_engines_are_what_plain_jax_trains_and_one_update_too_soon_is_seen():
    found = on_device.engines("resnet8", 3, 10, 16)
    assert max(found["from_oracle"].values()) < on_device.BOUND and found["between_engines"] < on_device.BOUND
    assert found["one_update_sooner"] > on_device.WRONG * on_device.BOUND


class Session:
    """A process of the command in small."""

    def __init__(self, folder: Path, *more: str):
        self.folder, self.said = folder, folder.with_suffix(f".{time.time_ns()}.log")
        words = [sys.executable, "-m", "experiments.gpu", "--minutes", "9", "--small", "--folder", str(folder), *more]
        with self.said.open("w") as file:
            self.process = subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.said.read_text()

    def stop(self, when: str, number: int, also=lambda: True) -> int:
        """Waits until it has said that, and sends the signal. Returns the exit code."""
        until(lambda: (when in self.text() and also()) or self.process.poll() is not None, 480)
        assert self.process.poll() is None, self.text()
        self.process.send_signal(number)
        return self.process.wait(120)

    def begun(self) -> list[str]:
        return re.findall(r"^begun +(\S+):", self.text(), re.MULTILINE)


def hashes(folder: Path) -> dict[str, str]:
    summaries = (folder / "rows").glob("*/summary.json")
    return {path.parent.name: json.loads(path.read_text())["final_state_sha256"] for path in summaries}


@pytest.mark.slow
def test_stopped_at_any_moment_and_given_again_it_ends_in_the_same_bits_and_does_nothing_twice(tmp_path):
    whole = Session(tmp_path / "whole")
    assert whole.process.wait(560) == 0, whole.text()
    assert "all parts are finished" in whole.text()
    folder = tmp_path / "stopped"
    done: list[Any] = []
    moments = [
        ("begun      resume", signal.SIGKILL, 128 + signal.SIGKILL),
        ("begun      engines", signal.SIGTERM, 143),
        ("begun      speed-resnet8", signal.SIGKILL, None),
        ("begun      together", signal.SIGTERM, 143),
        ("begun      rows-resnet8", signal.SIGKILL, None),
        ("begun      rows-resnet8", signal.SIGTERM, 143),
    ]
    for when, number, code in moments:
        session = Session(folder)
        training = (lambda: any((folder / "rows").glob("*/checkpoints/step-*"))) if "rows" in when else (lambda: True)
        ended = session.stop(when, number, training)
        assert ended == (-signal.SIGKILL if number == signal.SIGKILL else code)
        assert not set(session.begun()) & set(done), "a finished part was begun again"
        done = [file.stem for file in (folder / "results").glob("*.jsonl")]
    last = Session(folder)
    assert last.process.wait(560) == 0, last.text()
    assert not set(last.begun()) & set(done)
    assert hashes(folder) == hashes(tmp_path / "whole") and len(hashes(folder)) == 3
    files = {file.name: file.read_text().splitlines() for file in (folder / "results").iterdir()}
    assert {name: len(lines) for name, lines in files.items()} == {
        file.name: len(file.read_text().splitlines()) for file in (tmp_path / "whole" / "results").iterdir()
    }
    assert not list((folder / "rows").glob("*/checkpoints"))  # they are large, and the runs are done
    again = Session(folder)
    assert again.process.wait(60) == 0 and again.begun() == []
