"""The built site in Chromium without a network: no request, no complaint, readable in light and dark and on a phone."""

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


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_nobody_and_can_be_read_in_light_and_dark_and_on_a_telephone(browser, page):
    chromium.easy_to_use(browser, SITE / f"{page}.html", texts=1)
    assert browser.run("return [...document.querySelectorAll('td.long')].every((cell) => cell.clientWidth >= 200)")
