"""The server of `python -m fdg_jax.watch --browser`: for its own page on this machine, to be read, and nothing else."""

import json
import os
import socket
import threading
import time
from http.client import HTTPConnection

import pytest
import watched_runs

from fdg_jax.errors import BadInput
from fdg_jax.report import report_page
from fdg_jax.runs import incidents
from fdg_jax.watch import __main__ as command
from fdg_jax.watch import server
from fdg_jax.watch.page import Page
from fdg_jax.watch.seen import Watched

HTML_NAME = "<img src=nowhere onerror=\"document.title='broken'\">&amp;<b>bold</b>"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = watched_runs.say(watched_runs.make(folder, note=HTML_NAME, dataset=HTML_NAME))
    incidents.add(run, 7, HTML_NAME)
    with server.serving(Watched(run).look(), 0) as made:
        yield made


def ask(served, path="/", method="GET", **headers):
    """(status, headers, body) of a request."""
    connection = HTTPConnection(server.ADDRESS, served.server_address[1], timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": served.url[7:-1], **headers}.items():
        for each in value if isinstance(value, list) else [value]:
            connection.putheader(name.replace("_", "-"), each)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body.decode()


def test_the_page_and_its_state_are_all_that_there_is(served):
    status, headers, body = ask(served)
    assert status == 200 and body.startswith("<!DOCTYPE html>") and "Stage 1 is the most stale" in body
    assert headers["content-type"] == "text/html; charset=utf-8"
    status, headers, state = ask(served, "/state.json", Sec_Fetch_Site="same-origin")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(state).keys() == {"ended", "title", "parts"}
    for part in json.loads(state)["parts"].values():
        assert part in body  # the page that is loaded has them already
    for path in (
        "/config.json", "/live.json", "/../config.json", "/..%2f..%2fetc/passwd", "//etc/passwd", "/%2e%2e/", "/?",
        "/state.json?x", "/state.json/", "http://127.0.0.1/", "*", "/\\..\\config.json", "/" + "a" * 60000,
    ):  # fmt: skip
        assert ask(served, path)[0] == 404, path


def test_nothing_can_be_changed_and_nothing_else_be_asked(served):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"):
        status, headers, _ = ask(served, method=method)
        assert (status, headers["allow"]) == (405, "GET, HEAD"), method
    status, headers, body = ask(served, method="HEAD")
    assert (status, body) == (200, "") and int(headers["content-length"]) > 1000


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}", "[::1]:{port}", "",
    ["127.0.0.1:{port}", "evil.example"], [],
])  # fmt: skip
def test_another_host_is_refused(served, host):
    """As it would come from a page of evil.example, whose name leads to 127.0.0.1 now."""
    port = served.server_address[1]
    named = [each.format(port=port) for each in host] if isinstance(host, list) else host.format(port=port)
    for path in ("/", "/state.json"):
        assert ask(served, path, Host=named)[0] == 403
    assert ask(served, Host=f"LOCALHOST:{port}")[0] == 200


def test_other_sites_cannot_read_and_the_page_runs_its_own_script_only(served):
    status, headers, body = ask(served, Origin="https://evil.example")
    assert status == 200 and not [name for name in headers if name.startswith("access-control")]
    assert ask(served, "/state.json", Sec_Fetch_Site="cross-site")[0] == 403
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    for name, value in server.HEADERS.items():
        assert headers[name.lower()] == value
    assert "set-cookie" not in headers and body.count("<script") == 1 and " style=" not in body
    elsewhere = body.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http://" not in elsewhere and "https://" not in elsewhere  # nor does it ask another server for anything


def test_it_listens_on_the_loopback_interface_alone(served):
    assert served.socket.getsockname()[0] == "127.0.0.1" and served.url.startswith("http://127.0.0.1:")
    others = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in others - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(5)
            assert probe.connect_ex((address, served.server_address[1])) != 0


def test_names_that_hold_html_stay_text(served):
    _, _, body = ask(served)
    assert body.count("&lt;img src=nowhere") >= 4 and "<img" not in body and "<b>bold" not in body
    _, _, state = ask(served, "/state.json")
    assert "<img" not in "".join(json.loads(state)["parts"].values())


def test_files_are_never_passed_on_whatever_they_are(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('a secret\n{"step": "a secret"}\n')
    run = watched_runs.say(watched_runs.make(tmp_path))
    page = Page()
    for name in ("metrics.jsonl", "incidents.jsonl", "stalls.jsonl", "live-1.json", "summary.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
    page.update(Watched(run).look())
    assert b"2 lines of metrics.jsonl cannot be read" in page.html and b"a secret" not in page.html + page.state


def test_garbage_and_silence_end_one_connection_and_not_the_server(served):
    for sent in (b"\r\n\r\n", b"\x00\xff" * 500, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n", b""):
        with socket.create_connection(served.server_address, timeout=20) as made:
            made.sendall(sent)
            made.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: made.recv(4096), b""))
            assert not answer.startswith(b"HTTP/1.0 200") and b"most stale" not in answer  # HTTP/0.9 has no headers
    with socket.create_connection(served.server_address, timeout=20):  # says nothing
        assert ask(served)[0] == 200


def answering():
    """How many threads have a connection."""
    return sum("process_request_thread" in each.name for each in threading.enumerate())


def test_idle_connections_are_limited_and_end_by_themselves(served, monkeypatch):
    """The process may be one that trains, and needs its threads and file handles itself."""
    monkeypatch.setattr(server.Handler, "timeout", 2)
    idle = [socket.create_connection(served.server_address, timeout=20) for _ in range(2 * server.MOST_CONNECTIONS)]
    ended = sum(each.recv(1) == b"" for each in idle[server.MOST_CONNECTIONS :])  # at once, as they are too many
    assert ended == server.MOST_CONNECTIONS and answering() == server.MOST_CONNECTIONS
    assert all(each.recv(1) == b"" for each in idle)
    for each in idle:
        each.close()
    until = time.monotonic() + 10
    while answering() and time.monotonic() < until:
        time.sleep(0.01)
    assert answering() == 0
    assert ask(served)[0] == 200


def test_a_server_without_file_handles_waits_for_them(served, monkeypatch):
    calls = []

    def none(*_):
        calls.append(1)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(server.ThreadingHTTPServer, "get_request", none)
    with socket.create_connection(served.server_address, timeout=20):
        time.sleep(1)
    assert 1 <= len(calls) < 10
    monkeypatch.undo()
    assert ask(served)[0] == 200


def test_a_port_that_cannot_be_had_is_refused(served, tmp_path, capsys):
    taken, run = served.server_address[1], str(watched_runs.say(watched_runs.make(tmp_path)))
    for words, said in (
        (["--browser", "--port", str(taken)], "cannot be used: Address already in use. Use another port"),
        (["--browser", "--port", "70000"], "use a number from 1 to 65535"),
        (["--port", "8000"], "Add --browser"), (["--browser", "--once"], "Leave one of them out"),
    ):  # fmt: skip
        assert command.main([run, *words]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(BadInput), server.serving(Watched(tmp_path / "run").look(), -1):
        pass


def test_it_ends_with_the_run_and_an_open_page_learns_how(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "LOOK_SECONDS", 0.05)
    run, codes, before = watched_runs.say(watched_runs.make(tmp_path)), [], set(threading.enumerate())
    watching = threading.Thread(target=lambda: codes.append(command.main([str(run), "--browser"])))
    watching.start()
    until, out = time.monotonic() + 20, ""
    while "http://" not in out and time.monotonic() < until:
        time.sleep(0.02)
        out += capsys.readouterr().out
    port = int(out.partition("127.0.0.1:")[2].partition("/")[0])
    states = []
    while not (states and states[-1]["ended"]) and time.monotonic() < until:
        connection = HTTPConnection(server.ADDRESS, port, timeout=20)
        connection.request("GET", "/state.json")
        states.append(json.loads(connection.getresponse().read()))
        connection.close()
        if len(states) == 3:
            watched_runs.say(run, "ended", exit_code=1, ended_by="loss is nan")
        time.sleep(0.05)
    watching.join(20)
    assert codes == [1] and not states[0]["ended"] and states[-1]["ended"]
    assert "exit code 1: loss is nan" in states[-1]["parts"]["state"]
    assert "exit code 1: loss is nan" in capsys.readouterr().out
    assert set(threading.enumerate()) <= before


def test_the_page_is_made_of_any_run_and_quickly(tmp_path):
    """A look of a long run is read once, and drawn with no more points than can be seen."""
    run = watched_runs.say(watched_runs.make(tmp_path, trained=30, lines=400))
    watched, page = Watched(run), Page()
    page.update(watched.look())
    began = time.process_time()
    page.update(watched.look())
    assert time.process_time() - began < 0.5 and len(page.state) < 60_000
    old = watched_runs.make(tmp_path / "old", K=1, error=3.0)
    os.remove(old / "metrics.jsonl")
    page.update(Watched(old).look())
    assert b"It has finished." in page.html


def test_the_report_has_the_busy_shares_too(tmp_path):
    run = watched_runs.say(watched_runs.make(tmp_path, error=3.0), "ended", exit_code=0)
    report_page.write(run)
    page = (run / "report.html").read_text()
    assert "<td>50%</td>" in page and "the share at which the stage computed" in page
    (run / "live.json").unlink()
    report_page.write(run)
    assert "the share at which" not in (run / "report.html").read_text()
