"""Fetches one file with a known checksum, and gives up in time.

Being offline has many faces: no name service, an address that swallows packets, a proxy that accepts and
never answers. Name look-ups can't be timed out and each address of a host gets its own timeout, so the
question is asked in a thread and the whole of it gets one budget. Once a server has answered, the budget
ends and only standing still, or creeping, counts as failure.
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

from fdg_jax.errors import BadInput
from fdg_jax.machine.stderr import Progress, say
from fdg_jax.storage import temporary_files


class Unavailable(BadInput):
    """What was asked for can't be had here; `--dataset auto` then takes something else."""


class Download(NamedTuple):
    """A file to fetch. `bytes` and `sha256` are checked before anybody sees the file."""

    url: str
    bytes: int
    sha256: str
    answer_seconds: float = 3.0  # budget for the first answer, all attempts together
    stall_seconds: float = 20.0  # nothing, or less than slowest_bytes_per_second, for this long is a failure
    slowest_bytes_per_second: float = 50_000.0
    attempts: int = 3


def fetch(download: Download, path: Path) -> None:
    """Downloads to `path`, which appears only when it is whole and its checksum is right.

    Raises Unavailable, with the reason, after at most `attempts` attempts; if no server ever answers, within
    `answer_seconds`. A file that has another size or checksum than expected isn't asked for again.
    """
    deadline = time.monotonic() + download.answer_seconds
    for attempt in range(1, download.attempts + 1):
        try:
            response = ask(download, deadline - time.monotonic())
            # It answered: we are online, and each further attempt may wait for an answer again.
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
        pause = 0.1 * 2**attempt  # seconds: short, for it also delays finding out that we are offline
        if attempt == download.attempts or time.monotonic() + pause >= deadline:
            break
        say(f"{download.url}: {reason}; trying again ({attempt + 1} of {download.attempts})")
        time.sleep(pause)
    raise Unavailable(f"{download.url} can't be downloaded: {reason}.")


class Interrupted(OSError):
    """A transfer that began and did not end: worth another attempt."""


def ask(download: Download, seconds: float) -> http.client.HTTPResponse:
    """Opens the URL and returns its response within `seconds`, or raises what happened instead."""
    answers: queue.Queue = queue.Queue()

    def open_url():
        try:
            answers.put(urllib.request.urlopen(download.url, timeout=download.stall_seconds))
        except Exception as error:  # handed to the caller, whatever it is
            answers.put(error)

    # A daemon thread, so that a name look-up that hangs doesn't hold up the end of the process.
    threading.Thread(target=open_url, daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError(f"no answer within {download.answer_seconds:g} seconds") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def receive(response: http.client.HTTPResponse, download: Download, path: Path) -> None:
    """Writes the body to a file beside `path`, checks it and renames it to `path`."""
    declared = response.headers.get("Content-Length")
    if declared is not None and declared != str(download.bytes):
        # A network's login page, for instance.
        raise Unavailable(f"{download.url} has {declared} bytes and not the {download.bytes:,} expected.")
    temporary = temporary_files.temporary_beside(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(temporary, "wb")  # noqa: SIM115 - its own errors, apart from the transfer's
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
    """Copies the body while it keeps coming and returns its sha256; raises Interrupted if it ends early."""
    digest = hashlib.sha256()
    progress = Progress(download.bytes, "bytes", f"downloading {download.url}")
    received, window_start, window_received = 0, time.monotonic(), 0
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
        seconds = time.monotonic() - window_start
        if seconds > download.stall_seconds:
            if received - window_received < seconds * download.slowest_bytes_per_second:
                raise Interrupted(f"only {received - window_received:,} bytes came in {seconds:.0f} seconds")
            window_start, window_received = time.monotonic(), received
    return digest.hexdigest()


def check(path: Path, download: Download) -> None:
    """Raises BadInput if the file that somebody put at `path` isn't the one that would be downloaded."""
    size = path.stat().st_size
    if size != download.bytes:
        raise BadInput(f"{path} has {size:,} bytes and not the {download.bytes:,} expected. Remove or replace it.")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != download.sha256:
        raise BadInput(f"{path} has the sha256 {digest} and not {download.sha256}. Remove or replace it.")


def unwritable(directory: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{directory} can't be written to ({error.strerror}). Set TFDS_DATA_DIR to a directory with room."
    )
