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

import pytest
from fault_runs import STEPS, Config, Process, assert_same, moment, newest

from fdg_jax.experiments import saving

SHUTDOWN, WITHOUT_JOURNAL = 0x8004587D, 2  # of linux/fs.h: FS_IOC_SHUTDOWN, FS_SHUTDOWN_FLAGS_NOLOGFLUSH
MEGABYTES = 64
PHASES = ("save", "step", "save", "evaluate", "compile")


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
def disk(tmp_path):
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("no file system can be made and mounted here (that takes root and mkfs.ext4)")
    made = Disk(tmp_path)
    try:
        made.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted from a file here: {error.stderr.decode().strip()}")
    yield made
    with contextlib.suppress(RuntimeError):
        made.unmount()


def test_what_is_not_flushed_is_lost_and_what_is_flushed_is_not(disk):
    """Else the cuts below would prove nothing."""
    os.sync()
    for name in ("flushed", "written"):
        (disk.path / name).write_text(name)
    handle = os.open(disk.path / "flushed", os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    (disk.path / "later").write_text("later")
    disk.cut()
    disk.unmount()
    disk.mount()
    assert (disk.path / "flushed").read_text() == "flushed"
    assert not (disk.path / "later").exists() or (disk.path / "later").read_text() == ""


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
    for each in saving.stored(path / "checkpoints"):
        saving.load(each)
    with Process(path, config, cache) as process:
        assert process.finish() == 0, process.told()
        assert "Traceback" not in process.told() and "warning" not in process.told().lower(), process.told()
    assert_same(path, run.path)
