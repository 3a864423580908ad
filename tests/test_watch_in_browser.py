"""The page of a run that goes on, in a real browser: it follows the run, serves everybody and asks nobody else."""

import json
import time

import chromium
import pytest
import watched_runs
from selenium.webdriver.common.keys import Keys

from fdg_jax.runs import incidents
from fdg_jax.watch import server
from fdg_jax.watch.seen import Watched

pytestmark = pytest.mark.slow
HTML_NAME = "<img src=nowhere onerror=\"document.title='broken'\">&amp;<b>bold</b>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def run(tmp_path):
    """A run whose names hold HTML."""
    made = watched_runs.make(tmp_path, note=HTML_NAME, dataset=HTML_NAME)
    config = json.loads((made / "config.json").read_text())
    config["stages"] = [{"share_percent": 33.3, "share_of": HTML_NAME}] * 3
    config["devices"][0] = HTML_NAME
    (made / "config.json").write_text(json.dumps(config))
    incidents.add(made, 7, HTML_NAME)
    return watched_runs.say(made)


def leave(browser) -> None:
    """Leaves the page before its server is gone, which it would complain of in the next test."""
    browser.driver.get("about:blank")
    browser.complaints()


def wait(browser, script, seconds=15):
    """What a script returns, once it is true."""
    until = time.monotonic() + seconds
    while not (found := browser.run(script)):
        assert time.monotonic() < until, script
        time.sleep(0.1)
    return found


TEXT = "return document.body.textContent"


def test_it_is_easy_to_use_and_asks_its_own_server_only(browser, run):
    with server.serving(Watched(run).look(), 0) as served:
        browser.requests()
        for dark in (False, True):
            for width in (1280, 360):
                browser.show(width, dark=dark)
                assert 0 < browser.open(served.url) < 2
                browser.run("document.querySelector('details').open = true")
                assert browser.run("return document.documentElement.scrollWidth") == width
                found = browser.run(chromium.CONTRAST)
                assert len(found) > 80 and not [each for each in found if each[0] < 4.5]  # WCAG AA
        wait(browser, "return shown.size")
        assert browser.run("return document.querySelectorAll('img').length") == 0
        assert browser.run("return [...document.querySelectorAll('b')].every((b) => b.textContent !== 'bold')")
        text = browser.run(TEXT)
        assert text.count(HTML_NAME) >= 6  # name, note, incident, a sentence, shares, a device
        assert browser.run("return document.title").startswith("65% ")
        assert {url.removeprefix(served.url) for url in browser.requests()} <= {"", "state.json", "data:,"}
        assert browser.complaints() == []
        leave(browser)


def test_the_keyboard_reaches_everything_and_keeps_its_place_while_the_page_changes(browser, run):
    watched = Watched(run)
    with server.serving(watched.look(), 0) as served:
        browser.show(360)
        browser.open(served.url)
        for name in ("stages", "summary", "schedule"):
            browser.press(Keys.TAB)
            told = browser.run("const e = document.activeElement; return [e.id, e.tagName]")
            assert name in (told[0], told[1].lower())
            assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
        browser.run("document.getElementById('stages').focus()")
        browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        moved = wait(browser, "return document.getElementById('stages').scrollLeft")
        time.sleep(0.5)
        moved = browser.run("return document.getElementById('stages').scrollLeft")
        watched_runs.say(run, stages=watched_runs.stages(3)[:2], step=1234)
        served.page.update(watched.look())
        wait(browser, "return document.getElementById('facts').textContent.includes('1,234')")
        assert browser.run("return [document.activeElement.id, document.activeElement.scrollLeft]") == ["stages", moved]
        assert browser.complaints() == []
        leave(browser)


def test_it_follows_the_run_to_its_end_and_keeps_that(browser, run):
    watched = Watched(run)
    with server.serving(watched.look(), 0) as served:
        browser.show(1280)
        browser.open(served.url)
        before = browser.run("return document.querySelector('#curves polyline').getAttribute('points')")
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 1200, "epoch": 3.0, "train_loss": 9.5, "learning_rate": 0.1}\n')
        served.page.update(watched.look())
        wait(browser, "return document.getElementById('facts').textContent.includes('9.5')")
        assert browser.run("return document.querySelector('#curves polyline').getAttribute('points')") != before
        watched_runs.say(run, "ended", exit_code=1, ended_by=HTML_NAME)
        browser.run("silent = 'noon'; document.getElementById('silent').hidden = false")  # as after a failure
        served.page.update(watched.look())
        wait(browser, "return document.querySelector('.state.failed')")
        server.linger(served)
    text = browser.run(TEXT)
    assert f"It failed with exit code 1: {HTML_NAME}" in text and "changes no more" in text
    browser.requests()
    time.sleep(2.5)
    assert browser.requests() == [] and browser.complaints() == []  # it asks no more, so nothing is missing
    assert browser.run("return document.getElementById('silent').hidden")


def test_it_says_so_when_its_server_is_gone(browser, run):
    with server.serving(Watched(run).look(), 0) as served:
        browser.open(served.url)
        wait(browser, "return shown.size")
    wait(browser, "return !document.getElementById('silent').hidden")
    assert "The server of this page has not answered since" in browser.run(TEXT)
    assert all("state.json" in said for said in browser.complaints())  # of the browser: nobody is there
    leave(browser)
