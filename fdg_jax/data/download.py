"""Downloads one file with a known checksum, and gives up in time.

Being offline shows in many ways: no name service, an address that drops packets, a proxy that accepts and never
answers. A name look-up has no timeout, and each address of a host has its own. So the request is made in a thread, with
one time limit for everything. Once a server has answered, only a stalled transfer is a failure.
"""

from __future__ import annotations

import hashlib
import http.client
import queue
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from fdg_jax import durable
from fdg_jax.errors import BadInput
from fdg_jax.machine.output import Progress, say


class Unavailable(BadInput):
    """The data set is not available on this machine. `--dataset auto` then takes another one."""


class Download(NamedTuple):
    """A file to download. `bytes` and `sha256` are checked before the file appears."""

    url: str
    bytes: int
    sha256: str
    answer_seconds: float = 3.0  # time limit for the first answer, all attempts together
    stall_seconds: float = 20.0  # without a byte for this long, the transfer has failed
    attempts: int = 3


def fetch(download: Download, path: Path) -> None:
    """Downloads a file. It appears only when it is complete and its checksum is right.

    Arguments:
        download: what to fetch.
        path: where it goes.

    Raises:
        Unavailable: all attempts failed, or no server answered within `answer_seconds`, or the file is not the expected
            one (then there is no further attempt). The message has the reason.
    """
    deadline = time.monotonic() + download.answer_seconds
    for attempt in range(1, download.attempts + 1):
        try:
            response = ask(download, deadline - time.monotonic())
            # The server answered, so we are online, and each further attempt may wait for an answer again.
            with response:
                receive(response, download, path)
            return
        except urllib.error.HTTPError as error:
            reason = f"the server answered {error.code} {error.reason}"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            if isinstance(error, Interrupted):
                deadline = time.monotonic() + download.answer_seconds
        pause = 0.1 * 2**attempt  # seconds; short, as it also delays noticing that we are offline
        if attempt == download.attempts or time.monotonic() + pause >= deadline:
            break
        say(f"{download.url}: {reason}; trying again ({attempt + 1} of {download.attempts})")
        time.sleep(pause)
    raise Unavailable(f"{download.url} can't be downloaded: {reason}.")


class Interrupted(OSError):
    """A transfer began and did not end: another attempt is worthwhile."""


def ask(download: Download, seconds: float) -> http.client.HTTPResponse:
    """Opens the URL and returns its response within `seconds`; raises TimeoutError, or the error of the request."""
    answers: queue.Queue = queue.Queue()

    def open_url():
        try:
            answers.put(urllib.request.urlopen(download.url, timeout=download.stall_seconds))
        except Exception as error:  # every error is handed to the caller
            answers.put(error)

    # A daemon thread, so that a hanging name look-up does not keep the process from ending.
    threading.Thread(target=open_url, daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(f"no answer within {download.answer_seconds:g} seconds") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def receive(response: http.client.HTTPResponse, download: Download, path: Path) -> None:
    """Writes the body to a temporary file, checks it and renames it to `path`. Raises Unavailable, Interrupted."""
    declared = response.headers.get("Content-Length")
    if declared is not None and declared != str(download.bytes):
        # For example a network's login page.
        raise Unavailable(f"{download.url} has {declared} bytes and not the {download.bytes:,} expected.")
    temporary = durable.temporary_beside(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(temporary, "wb")  # noqa: SIM115 - its errors are separate from the transfer's
        except OSError as error:
            raise unwritable(path.parent, error) from error
        with file:
            digest = copy(response, file, download, path)
        if digest != download.sha256:
            raise Unavailable(
                f"{download.url} has the sha256 {digest} and not {download.sha256}, as it should: it was "
                f"changed on the way or at its source, and isn't used."
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def copy(response: http.client.HTTPResponse, file, download: Download, path: Path) -> str:
    """Copies the body to a file and returns its sha256. Raises Interrupted if the transfer ends early or stalls."""
    digest = hashlib.sha256()
    progress = Progress(download.bytes, "bytes", f"downloading {download.url}")
    received = 0
    while received < download.bytes:
        try:
            chunk = response.read1(1 << 16)
        except (OSError, http.client.HTTPException) as error:
            raise Interrupted(f"{error} after {received:,} of {download.bytes:,} bytes") from error
        if not chunk:
            raise Interrupted(f"it ended after {received:,} of {download.bytes:,} bytes")
        try:
            file.write(chunk)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        digest.update(chunk)
        received += len(chunk)
        progress.advance(len(chunk))
    return digest.hexdigest()


def check(path: Path, download: Download) -> None:
    """Raises BadInput if the user's file at `path` is not the one that would be downloaded."""
    size = path.stat().st_size
    if size != download.bytes:
        raise BadInput(f"{path} has {size:,} bytes and not the {download.bytes:,} expected. Remove or replace it.")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != download.sha256:
        raise BadInput(f"{path} has the sha256 {digest} and not {download.sha256}. Remove or replace it.")


def unwritable(directory: Path, error: OSError) -> Unavailable:
    """The error for a directory that cannot be written to."""
    return Unavailable(
        f"{directory} can't be written to ({error.strerror}). Set TFDS_DATA_DIR to a directory with room."
    )
