"""The built site in Chromium without a network: no request, no complaint, readable in light and dark and on a phone."""

import time
from pathlib import Path

import chromium
import pytest

SITE = Path(__file__).resolve().parent.parent / "build" / "docs"
PAGES = ("index", "docs/methods", "docs/methods/fdg", "docs/reference/pipeline", "experiments/results/decisive")
OFFLINE = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="there is no site; `make docs` builds it"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.driver.execute_cdp_cmd("Network.enable", {})
        opened.driver.execute_cdp_cmd("Network.emulateNetworkConditions", OFFLINE)
        yield opened


def comes_true(question):
    """Whether it does within some seconds."""
    end = time.monotonic() + 20
    while not question():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_nobody_and_can_be_read_in_light_and_dark_and_on_a_telephone(browser, page):
    chromium.easy_to_use(browser, SITE / f"{page}.html", texts=1)
    assert browser.run("return [...document.querySelectorAll('td.long')].every((cell) => cell.clientWidth >= 200)")


def test_the_explorer_lies_in_the_page_about_the_idea_and_draws(browser):
    browser.show(1200)
    browser.open(SITE / "docs" / "idea.html")
    frame = browser.driver.find_element("css selector", "iframe.explorer")
    browser.run("arguments[0].scrollIntoView()", frame)
    browser.driver.switch_to.frame(frame)
    try:
        drawn = "return document.querySelectorAll('#panel-0 svg rect').length"
        assert comes_true(lambda: browser.run(drawn) > 20)
    finally:
        browser.driver.switch_to.default_content()


def test_the_search_finds_a_page_without_a_network(browser):
    browser.driver.get((SITE / "search.html").as_uri() + "?q=staleness")
    found = "return [...document.querySelectorAll('#search-results li a')].map((a) => a.textContent)"
    assert comes_true(lambda: "The idea" in browser.run(found))
    assert browser.complaints() == []
