"""Downloads one file with a known checksum into memory, and gives up in time.

An offline machine shows in many ways: there is no name service, an address drops packets, or a proxy accepts and never
answers. A name look-up has no timeout, and each address of a host has its own timeout. So the request is made in a
thread, with one time limit for everything. Once a server has answered, only a stalled transfer is a failure.
"""

import hashlib
import http.client
import math
import queue
import threading
import time
import urllib.error
import urllib.request
from typing import NamedTuple

from fdg_jax.errors import BadInput
from fdg_jax.machine.output import Progress, say


class Unavailable(BadInput):
    """The data set is not available on this machine. `--dataset auto` then takes another data set."""


class Download(NamedTuple):
    """A file to download. `bytes` and `sha256` are checked."""

    url: str
    bytes: int
    sha256: str
    answer_seconds: float = 3.0  # time limit for the first answer, all attempts together
    stall_seconds: float = 20.0  # without a byte for this long, the transfer has failed
    attempts: int = 3


def fetch(download: Download) -> bytes:
    """Downloads a file into memory.

    Raises:
        Unavailable: all attempts failed, no server answered within `answer_seconds`, or another file was received.
            After another file, there is no further attempt. The message has the reason.
    """
    deadline = time.monotonic() + download.answer_seconds
    for attempt in range(1, download.attempts + 1):
        try:
            response = ask(download, min(deadline - time.monotonic(), download.answer_seconds))
            deadline = math.inf  # the server has answered, so we are online
            with response:
                return receive(response, download)
        except urllib.error.HTTPError as error:
            reason = f"the server answered {error.code} {error.reason}"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        pause = 0.1 * 2**attempt  # seconds; short, since the pause also delays noticing that we are offline
        if attempt == download.attempts or time.monotonic() + pause >= deadline:
            break
        say(f"{download.url}: {reason}; trying again ({attempt + 1} of {download.attempts})")
        time.sleep(pause)
    raise Unavailable(f"{download.url} can't be downloaded: {reason}.")


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


def receive(response: http.client.HTTPResponse, download: Download) -> bytes:
    """The body of a response. Raises Unavailable if the body is not the expected file, OSError if the transfer ends
    early."""
    declared = response.headers.get("Content-Length")
    if declared is not None and declared != str(download.bytes):
        # For example a network's login page.
        raise Unavailable(f"{download.url} has {declared} bytes instead of the {download.bytes:,} expected.")
    progress, content = Progress(download.bytes, "bytes", f"downloading {download.url}"), bytearray()
    while len(content) < download.bytes:
        try:
            chunk = response.read1(1 << 16)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"{error} after {len(content):,} of {download.bytes:,} bytes") from error
        if not chunk:
            raise OSError(f"the connection ended after {len(content):,} of {download.bytes:,} bytes")
        content += chunk
        progress.advance(len(chunk))
    if difference := differs(content, download):
        raise Unavailable(f"{download.url} has {difference}: the file was changed on the way or at its source.")
    return bytes(content)


def differs(content: bytes | bytearray, download: Download) -> str:
    """A text on how a file differs from the file to download; "" if it does not differ."""
    if len(content) != download.bytes:
        return f"{len(content):,} bytes instead of the {download.bytes:,} expected"
    digest = hashlib.sha256(content).hexdigest()
    return "" if digest == download.sha256 else f"the sha256 {digest} instead of {download.sha256}"
