"""Downloading and preparing CIFAR, against a server of our own that can misbehave."""

import http.server
import os
import signal
import threading
import time
from typing import Any

import pytest

from fdg_jax.data import cifar
from fdg_jax.data.download import Unavailable
from fdg_jax.errors import BadInput
from fdg_jax.machine.signals import Signals, Stopped
from tests.cifar_files import SETS, archive, assert_same, own_directories_and_no_proxy, served, small


@pytest.fixture(autouse=True)
def _own_directories_and_no_proxy(tmp_path, monkeypatch):
    own_directories_and_no_proxy(tmp_path, monkeypatch)


@pytest.fixture
def server():
    """A web server; `server.answer` is a function of (handler, number of the request, from 0)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            number, server.requests = server.requests, server.requests + 1
            server.answer(self, number)

        def log_message(self, *args):
            pass

    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.requests, server.released = 0, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}/archive.tar.gz"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def send(content, declared=None):
    """Answers with `content`; `declared` is the Content-Length if it is to lie, False for none."""

    def answer(handler, number):
        handler.send_response(200)
        if declared is not False:
            handler.send_header("Content-Length", str(len(content) if declared is None else declared))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def leftovers(tmp_path):
    return sorted(str(path) for path in (tmp_path / "tfds").rglob("*") if path.is_file())


@pytest.mark.parametrize("classes", [10, 100])
def test_a_downloaded_archive_becomes_a_file_of_arrays_bit_for_bit(server, tmp_path, classes):
    content, arrays = archive(classes)
    server.answer = send(content)
    name = f"cifar{classes}"
    dataset = cifar.load(small(SETS[classes], **served(content, server.url)), None)
    assert_same(dataset, arrays)
    assert (dataset.name, dataset.classes, dataset.pad, dataset.flip) == (name, classes, 4, True)
    assert leftovers(tmp_path) == [str(tmp_path / "tfds" / f"{name}.npz")]
    # Once it is there, it needs no server any more, and may be named.
    spec = small(SETS[classes], url="http://127.0.0.1:1/")
    assert_same(cifar.load(spec, None), arrays)
    assert_same(cifar.load(spec, tmp_path / "tfds"), arrays)
    assert server.requests == 1
    file = tmp_path / "tfds" / f"{name}.npz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BadInput, match=rf"{name}\.npz can't be used: .* Remove or replace it"):
        cifar.load(spec, None)


def cut(handler, number):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    handler.wfile.write(CONTENT[: len(CONTENT) // 2])


def status(code):
    return lambda handler, number: handler.send_error(code)


CONTENT, ARRAYS = archive(10)
WRONG = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])


@pytest.mark.parametrize(("answer", "message", "requests"), [
    (status(503), "503", 3),
    (send(WRONG), "sha256", 1),
    (send(b"<html>please log in</html>"), "26 bytes", 1),
    (cut, f"ended after {len(CONTENT) // 2:,} of {len(CONTENT):,} bytes", 3),
], ids=["503", "wrong checksum", "login page", "cut"])  # fmt: skip
def test_a_server_that_fails_is_given_up_and_leaves_nothing_behind(server, tmp_path, answer, message, requests):
    server.answer = answer
    spec = small(SETS[10], **served(CONTENT, server.url))
    start = time.monotonic()
    with pytest.raises(Unavailable, match=message) as raised:
        cifar.load(spec, None)
    assert time.monotonic() - start < 4  # seconds, the pauses between included
    assert server.requests == requests
    assert "--data-dir" in str(raised.value)
    assert "--dataset digits" in str(raised.value)
    assert leftovers(tmp_path) == []


def test_a_signal_ends_a_download_at_once_and_nothing_of_it_stays(server, tmp_path):
    def answer(handler, number):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:1000])
        os.kill(os.getpid(), signal.SIGTERM)
        handler.server.released.wait(30)  # the rest never comes

    server.answer = answer
    began = time.monotonic()
    with Signals(), pytest.raises(Stopped, match="SIGTERM"):
        cifar.load(small(SETS[10], **served(CONTENT, server.url)), None)
    assert time.monotonic() - began < 10  # and not the 20 s after which it counts as standing still
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("content", "message"), [(CONTENT, ""), (WRONG, "sha256"), (CONTENT[:-1], "bytes")])
def test_an_archive_put_into_downloads_by_hand_is_used_and_kept_or_refused(tmp_path, content, message):
    given = tmp_path / "tfds" / "downloads" / "archive.tar.gz"
    given.parent.mkdir(parents=True)
    given.write_bytes(content)
    spec = small(SETS[10], **served(CONTENT, "http://127.0.0.1:1/archive.tar.gz"))
    if not message:
        assert_same(cifar.load(spec, None), ARRAYS)
    else:
        with pytest.raises(BadInput, match=f"{given} .*{message}") as raised:
            cifar.load(spec, None)
        assert not isinstance(raised.value, Unavailable)  # auto doesn't pass over it in silence
    assert given.read_bytes() == content
