"""Data are prepared once, by whoever comes first, and what killed processes left is swept away."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from test_data_download import ARRAYS, CONTENT, WRONG

from fdg_jax import durable
from fdg_jax.data import cifar, directories, prepare
from fdg_jax.data.download import Download, Unavailable, ask
from fdg_jax.errors import BadInput
from tests.cifar_files import SETS, TEST, TRAIN, assert_same, own_directories_and_no_proxy, served, small


@pytest.fixture(autouse=True)
def _own_directories_and_no_proxy(tmp_path, monkeypatch):
    own_directories_and_no_proxy(tmp_path, monkeypatch)


def test_a_port_that_nobody_listens_on_is_offline():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(Unavailable, match="refused"):
        cifar.load(small(SETS[10], url=f"http://127.0.0.1:{port}/a.tar.gz"), None)
    assert time.monotonic() - start < 5


def test_a_name_service_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: time.sleep(3) or [])
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer"):
        ask(Download("http://nowhere.invalid/a", 1, ""), 0.3)
    assert time.monotonic() - start < 1


def test_an_archive_put_into_downloads_by_hand_is_used_and_kept(tmp_path):
    given = tmp_path / "tfds" / "downloads" / "archive.tar.gz"
    given.parent.mkdir(parents=True)
    given.write_bytes(CONTENT)
    spec = small(SETS[10], **served(CONTENT, "http://127.0.0.1:1/archive.tar.gz"))
    assert_same(cifar.load(spec, None), ARRAYS)
    assert given.read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "message"), [(WRONG, "sha256"), (CONTENT[:-1], "bytes")])
def test_a_wrong_archive_put_into_downloads_by_hand_is_refused(tmp_path, content, message):
    given = tmp_path / "tfds" / "downloads" / "archive.tar.gz"
    given.parent.mkdir(parents=True)
    given.write_bytes(content)
    with pytest.raises(BadInput, match=message) as raised:
        cifar.load(small(SETS[10], **served(CONTENT, "http://127.0.0.1:1/archive.tar.gz")), None)
    assert str(given) in str(raised.value)
    assert not isinstance(raised.value, Unavailable)  # auto doesn't pass over it in silence


def test_two_processes_that_prepare_at_once_both_find_it_prepared(tmp_path):
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(CONTENT)
    spec = small(SETS[10])
    both = threading.Barrier(2)
    results = []

    def work():
        both.wait()
        results.append(prepare.prepare(path, spec.layout, spec.expected, tmp_path / "tfds"))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [directories.find("cifar10", tmp_path / "tfds")] * 2
    assert_same(cifar.load(spec, None), ARRAYS)
    assert [path.name for path in (tmp_path / "tfds" / "cifar10").iterdir()] == [prepare.VERSION]


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path):
    old, young = tmp_path / ".file.1-2.tmp", tmp_path / ".file.3-4.tmp"
    old.mkdir()
    (old / "part").write_text("")
    young.write_text("")
    long_ago = time.time() - 25 * 3600
    for each in (old / "part", old):
        os.utime(each, (long_ago, long_ago))
    durable.temporary_beside(tmp_path / "file")
    assert not old.exists()
    assert young.exists()


def test_preparing_and_reading_need_no_tensorflow_and_open_no_socket(tmp_path):
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(CONTENT)
    code = f"""
import sys
def forbid(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"a socket was opened: {{event}} {{arguments}}")
sys.addaudithook(forbid)
from pathlib import Path
from fdg_jax.data import cifar, prepare
from fdg_jax.data.sets import cifar10
spec = cifar10.CIFAR10._replace(expected=cifar10.CIFAR10.expected._replace(train={TRAIN}, test={TEST}))
prepare.prepare(Path({str(path)!r}), spec.layout, spec.expected, Path({str(tmp_path / "tfds")!r}))
assert "tensorflow_datasets" in sys.modules and "tensorflow" not in sys.modules
print(cifar.load(spec, {str(tmp_path / "tfds")!r}).train_images.shape)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert f"({TRAIN}, 32, 32, 3)" in result.stdout


@pytest.mark.parametrize(("dead", "age", "stays"), [(True, 120, False), (True, 5, True), (False, 120, True)])
def test_what_a_killed_process_of_this_machine_left_is_removed_after_a_minute(dead, age, stays, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    process = ended.pid if dead else os.getpid()
    archive = tmp_path / "archive"
    first = f".archive.{durable.host()}-{process}-1.tmp"
    left = [tmp_path / first, tmp_path / f".{first}.{durable.host()}-{process}-2.tmp"]
    then = time.time() - age
    for file in left:
        file.write_text("")
        os.utime(file, (then, then))
    durable.temporary_beside(archive)
    assert [file.exists() for file in left] == [stays, stays]


def test_the_names_that_are_swept_are_those_that_are_given(tmp_path):
    first = durable.temporary_beside(tmp_path / "archive")
    second = durable.temporary_beside(first)
    long_ago = time.time() - 25 * 3600
    for file in (first, second):
        file.write_text("")
        os.utime(file, (long_ago, long_ago))
    durable.temporary_beside(tmp_path / "archive")
    assert list(tmp_path.iterdir()) == []
