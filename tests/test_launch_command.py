"""What the launcher gives to its processes, what it prints of them, where they run, and what it refuses."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from types import SimpleNamespace

import jax
import pytest
from launched import Launched

from fdg_jax.launch import Printer, main, shares, stages_of
from fdg_jax.transport import devices

# What the processes are given and what they print


@pytest.mark.parametrize(("K", "processes"), [(3, 3), (3, 2), (4, 3), (5, 2), (7, 3)])
def test_a_process_is_named_with_the_stages_that_the_pipeline_gives_it(K, processes, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    there = [SimpleNamespace(process_index=process) for process in range(processes) for _ in range(K)]
    monkeypatch.setattr(jax, "devices", lambda: there)
    of = [device.process_index for device in devices.devices_of_processes(K)]
    for process, words in enumerate(stages_of(["train.py", "--K", str(K)], processes)):
        stages = [k for k in range(1, K + 1) if of[k - 1] == process]
        assert [int(number) for number in re.findall(r"\d+", words)] == sorted({stages[0], stages[-1]})
    assert stages_of(["train.py"], processes) == []


def test_every_process_gets_its_flags_and_every_line_its_process():
    code = "print(sys.argv[1:])\nprint('a\\r', 'b\\n\\nc', sep='', end='')\nprint('wrong', file=sys.stderr)"
    with Launched(code, words=("--K", "3"), by=("-m", "fdg_jax.launch")) as launched:
        exit_code, out, err = launched.finish()
    assert exit_code == 0
    assert sorted(line for line in err.splitlines() if line[0] == "[") == ["[0] wrong", "[1] wrong", "[2] wrong"]
    (port,) = set(re.findall(r"127\.0\.0\.1:(\d+)", out))
    for me in range(3):
        given = ["--K", "3", "--coordinator", f"127.0.0.1:{port}", "--processes", "3", "--process-id", str(me)]
        printed = [line for line in out.splitlines() if line.startswith(f"[{me}]")]
        assert printed == [f"[{me}] {line}" for line in (given, "a", "b", "", "c")]


@pytest.mark.parametrize(("arrived", "expected"), [
    ([b"a\nb", b"c\n\nd"], [b"a", b"bc", b"", b"d"]),
    ([b"\r10%", b"\r20%\r", b"\n"], [b"10%", b"20%"]),
    ([b"a\r", b"\nb\r\n"], [b"a", b"b"]),
    ([b"\n", b"\xff"], [b"", b"\xff"]),
])  # fmt: skip
def test_lines_are_whole_however_they_arrive(arrived, expected, tmp_path):
    read, write = os.pipe()
    with (tmp_path / "out").open("w+b") as out, os.fdopen(read, "rb") as pipe, ThreadPoolExecutor(1) as pool:
        forwarded = pool.submit(Printer(SimpleNamespace(buffer=out), Lock()).forward, pipe, "[0] ")
        for piece in arrived:
            os.write(write, piece)
            time.sleep(0.01)
        os.close(write)
        forwarded.result()
        out.seek(0)
        assert out.read() == b"".join(b"[0] " + line + b"\n" for line in expected)


# Cores, and what is refused


@pytest.mark.parametrize(("processes", "cores", "expected"), [
    (2, [0, 1], [[0], [1]]), (3, [4, 5], [[4], [5], [4]]), (2, [0, 1, 2], [[0], [1, 2]]),
    (3, range(8), [[0, 1], [2, 3, 4], [5, 6, 7]]), (2, [], [[], []]),
])  # fmt: skip
def test_cores_are_shared_out_as_evenly_as_possible(processes, cores, expected):
    assert [list(share) for share in shares(processes, cores)] == expected


@pytest.mark.parametrize(("words", "said"), [
    ("--processes 0 -- -c pass", "--processes 0: use 1 or more"),
    ("--processes 2", "nothing to start"),
    ("--processes 2 -m fdg_jax.experiments.cifar", "Write --"),
    ("--processes 2 --restart 1 -- -c pass", "Add --run-dir DIR"),
    ("--processes 2 --grace nan -- -c pass", "--grace nan"),
    ("--processes 5 -- train.py --K 2", "there are only K=2. Use 1 to 2."),
])  # fmt: skip
def test_what_cannot_be_started_is_refused_in_one_sentence(words, said, capsys):
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and said in err
