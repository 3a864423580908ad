"""The power fails at random moments: what the disk still has afterwards goes on to the same end, bit for bit.

A file system of its own, ext4 in a file, is shut down without writing its journal. After that it has what was flushed
(fsync), and little else: the rest of what was written is gone, or is there as files without content.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fault_runs import Config, Process, assert_same, moment, newest

from fdg_jax import durable
from fdg_jax.checkpoint import run_checkpoints
from fdg_jax.engine.losses import Metrics
from fdg_jax.runs import run_files
from fdg_jax.training.record import Record

SHUTDOWN, WITHOUT_JOURNAL = 0x8004587D, 2  # of linux/fs.h: FS_IOC_SHUTDOWN, FS_SHUTDOWN_FLAGS_NOLOGFLUSH
MEGABYTES = 64
PHASES = ("save", "step", "evaluate")


class Disk:
    """An ext4 file system in a file, mounted at `path`."""

    def __init__(self, folder: Path):
        self.image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(MEGABYTES * 2**20)
        subprocess.run(["mkfs.ext4", "-q", str(self.image)], check=True, capture_output=True)

    def mount(self) -> None:
        """What the journal has is put in its place by this."""
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.path)], check=True, capture_output=True)

    def cut(self) -> None:
        """From now on nothing reaches the disk, and nobody can write to it."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        for _ in range(100):  # a process that was killed may hold it for a moment
            if subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.path} cannot be unmounted")


@pytest.fixture
def disk(tmp_path, all_of_them):
    give_up = pytest.fail if all_of_them else pytest.skip  # who asks for all of them is not to take skips for cuts
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        give_up("no file system can be made and mounted here (that takes root and mkfs.ext4)")
    made = Disk(tmp_path)
    try:
        made.mount()
    except subprocess.CalledProcessError as error:
        give_up(f"no file system can be mounted from a file here: {error.stderr.decode().strip()}")
    yield made
    with contextlib.suppress(RuntimeError):
        made.unmount()


@pytest.fixture
def after_a_cut(disk):
    """after_a_cut(): cuts the power, and turns it on again."""

    def cut():
        disk.cut()
        disk.unmount()
        disk.mount()

    return cut


def test_what_is_not_flushed_is_lost_and_what_is_flushed_is_not(disk, after_a_cut):
    """Else the cuts below would prove nothing."""
    os.sync()
    durable.write(disk.path / "flushed", b"flushed")
    (disk.path / "written").write_text("written")
    after_a_cut()
    assert (disk.path / "flushed").read_text() == "flushed"
    assert not (disk.path / "written").exists() or (disk.path / "written").read_text() == ""


def record(run: Path) -> Record:
    made = Record(examples=32, batch_size=8, log_every=1, learning_rates=np.full(9, 0.1, np.float32))
    made.open(run, tensorboard=True)
    return made


def test_a_checkpoint_and_the_lines_that_it_counts_survive_from_when_it_is_written(disk, after_a_cut):
    run = disk.path / "new" / "run"
    durable.make_folder(run)
    run_files.write_json(run / "config.json", {"K": 2})
    ours = record(run)
    saver = run_checkpoints.Saver(run / "checkpoints", {}, keep=1, flush=ours.flush)
    for step in (1, 2):
        ours.losses([Metrics(step, 0.5)])
        saver.save(step, {"a": np.full(1000, step)}, ours.state())
        saver.wait()
    ours.close()
    (curves,) = (run / "tensorboard").iterdir()
    points = curves.read_bytes()
    after_a_cut()
    found = run_checkpoints.load_newest(run / "checkpoints")
    assert found is not None and found[0]["a"][0] == found[1]["lines"] == 2
    assert [event["step"] for event in run_files.read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert run_files.read_json(run / "config.json") == {"K": 2}
    assert curves.read_bytes() == points and len(points) > 100


@pytest.mark.parametrize("moment", ["before the rename", "while older ones are removed"])
def test_at_every_moment_of_a_save_one_checkpoint_is_durable(moment, disk, after_a_cut, monkeypatch):
    class Cut(BaseException):
        """Nothing of ours may handle it."""

    def cut(*_, **__):
        disk.cut()
        raise Cut

    root, arrays = disk.path / "checkpoints", {"a": np.arange(1000)}
    saver = run_checkpoints.Saver(root, {}, keep=1)
    saver.write(1, arrays, {"step": 1}, None, False)
    os.sync()
    remove, first = shutil.rmtree, ".step-000000001.old"
    with monkeypatch.context() as patch:
        if moment == "before the rename":
            patch.setattr(durable, "rename", cut)
        else:
            patch.setattr(shutil, "rmtree", lambda path, **how: cut() if path.name == first else remove(path, **how))
        with pytest.raises(Cut):
            saver.write(2, arrays, {"step": 2}, None, False)
    disk.unmount()
    disk.mount()
    found = run_checkpoints.load_newest(root)
    assert found is not None and found[1]["step"] == (1 if moment == "before the rename" else 2)


def seen(path: Path) -> tuple[int, int]:
    """(the newest checkpoint that has its name, the newest that must survive). A checkpoint must survive from when its
    thread is done with it, and that is certain once the next one is being written."""
    begun = [int(each.name[6:15]) for each in (path / "checkpoints").glob(".step-*.tmp")]
    named = newest(path)
    sure = named if any(step > named for step in begun) else -1
    return named, sure


@pytest.mark.slow
@pytest.mark.cases(sample=2, hundred=20)
def test_a_run_whose_power_is_cut_at_any_moment_ends_as_one_that_is_not(seed, disk, whole, cache, tell):
    config, path, random = Config("fdg", 2, "pipeline"), disk.path / "run", Random(f"power {seed}")
    run, haste = whole(config), 1.0
    while True:
        phase = PHASES[seed % len(PHASES)]
        with Process(path, config, cache) as process:
            step, delay = moment(random, phase, process.before, run.seconds)
            came = process.wait_for(phase, step)
            time.sleep(haste * delay)
            struck = came and process.popen.poll() is None
            if struck:
                named, sure = seen(path)
                disk.cut()
                process.popen.send_signal(signal.SIGKILL)
            process.finish()
        if struck:
            break
        shutil.rmtree(path)  # it was done before: once more, and earlier
        haste /= 2
    disk.unmount()
    disk.mount()
    left = newest(path)
    tell(f"cut in {phase}, after batch {named} ({sure} for sure); the disk has that after batch {left}")
    assert left >= sure
    for each in run_checkpoints.stored(path / "checkpoints"):
        run_checkpoints.load(each)
    with Process(path, config, cache) as process:
        assert process.finish() == 0, process.told()
        assert "Traceback" not in process.told() and "warning" not in process.told().lower(), process.told()
    assert_same(path, run.path)
