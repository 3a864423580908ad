"""Serves the page of a run to the browsers of this machine: read-only, and to nobody else.

It listens on 127.0.0.1 alone. A page of another site that has its own name point there (DNS rebinding) is refused by
the Host that its browser sends. No request names a file, and none makes the server read one: it answers from memory.
There is no password, so other users of this machine can look, too.
"""

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fdg_jax.errors import BadInput
from fdg_jax.watch.page import Page
from fdg_jax.watch.seen import Seen

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 32  # at once: each has a thread and a file handle of the process, which may be one that trains
LINGER_SECONDS = 5.0  # after the end: for a page that asks once a second
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: "Server"
    timeout = 5  # seconds that a connection may be silent
    server_version, sys_version = "fdg_jax", ""

    def do_GET(self) -> None:
        """The page, or what has changed of it."""
        page = self.server.page
        asked: dict[str, tuple[str, bytes]] = {
            "/": ("text/html; charset=utf-8", page.html),
            "/state.json": ("application/json", page.state),
        }
        hosts, site = self.headers.get_all("Host") or [], self.headers.get("Sec-Fetch-Site", "none")
        if len(hosts) != 1 or hosts[0].lower() not in self.server.names:
            self.answer(HTTPStatus.FORBIDDEN, "text/plain", b"This server answers to its own address only.\n")
        elif self.path not in asked:
            self.answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is nothing here. The page is /.\n")
        elif self.path != "/" and site not in ("same-origin", "none"):
            self.answer(HTTPStatus.FORBIDDEN, "text/plain", b"Only its own page may ask this.\n")
        else:
            self.answer(HTTPStatus.OK, *asked[self.path])
            self.server.asked = time.monotonic()

    do_HEAD = do_GET

    def refuse(self) -> None:
        """Whatever would change something."""
        self.close_connection = True
        self.answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"This server can only be read.\n")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.refuse
        raise AttributeError(name)

    def answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        """Sends an answer; of HEAD, its headers alone."""
        self.send_response(status)
        policy = self.server.page.policy if kind.startswith("text/html") else "default-src 'none'"
        more = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        sent = {"Content-Type": kind, "Content-Length": str(len(content)), "Content-Security-Policy": policy}
        sent["Content-Security-Policy"] += "; frame-ancestors 'none'"
        for name, value in {**HEADERS, **sent, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request a second tells nobody anything."""


class Server(ThreadingHTTPServer):
    """The server of a page.

    page: the newest. names: the hosts that it answers to. asked: when a page was last asked for; None: never.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS  # of five, the default, a browser that asks for more at once waits a second

    def __init__(self, port: int):
        self.page = Page()
        self.asked: float | None = None
        self.free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((ADDRESS, port), Handler)
        number = self.server_address[1]
        self.names = {f"{name}:{number}" for name in (ADDRESS, "localhost")}  # a browser leaves out port 80 only
        self.names |= {ADDRESS, "localhost"} if number == 80 else set()
        self.url = f"http://{ADDRESS}:{number}/"

    def server_bind(self) -> None:
        """Without the look-up of this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def get_request(self) -> Any:
        """The next connection. Where none can be had, say for want of file handles, it is not asked for at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.2)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread; closes what is too much."""
        if not self.free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a browser that goes away in the middle of an answer is no error of ours."""


@contextlib.contextmanager
def serving(seen: Seen, port: int) -> Iterator[Server]:
    """A server in a thread. port: 0 for one that is free. Raises BadInput where it cannot be had."""
    if not 0 <= port <= 65535:
        raise BadInput(f"--port {port}: use a number from 1 to 65535, or leave it out for one that is free.")
    try:
        server = Server(port)
    except OSError as error:
        if not port:
            raise BadInput(f"No port of {ADDRESS} can be had for the page: {error.strerror or error}.") from None
        fact = f"--port {port}: {ADDRESS}:{port} cannot be used: {error.strerror or error}"
        raise BadInput(f"{fact}. Use another port, or leave it out for one that is free.") from None
    with server:
        server.page.update(seen)
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="watch-server", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)


def linger(server: Server) -> None:
    """Waits until a page that is open has asked once more, but not for long."""
    ended = time.monotonic()
    is_open = server.asked is not None and ended - server.asked < LINGER_SECONDS
    while is_open and time.monotonic() - ended < LINGER_SECONDS:
        if (server.asked or 0.0) > ended:
            time.sleep(0.2)  # for the answer to arrive
            return
        time.sleep(0.05)
