"""The machine's own Chromium without a window, for tests of pages; they are skipped where there is none."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "chromedriver": ("chromedriver",)}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

# The time is 0 until the page's load event has ended, and the driver may return a moment before.
LOADED = """
return new Promise(resolve => {
    const [n] = performance.getEntriesByType('navigation');
    const ask = () => n.loadEventEnd > 0 ? resolve(n.loadEventEnd) : setTimeout(ask, 1);
    ask();
});
"""


def program(name: str) -> str:
    """The path of a program. Skips the test where it is not installed."""
    found = next((path for each in PROGRAMS[name] if (path := shutil.which(each))), None)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install chromium chromium-driver)")
    return found


class Browser:
    """A browser with one page.

    driver: selenium's.
    """

    def __init__(self, driver: Any):
        self.driver = driver

    def show(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Sets the size of the window, in pixels, and whether its user likes it dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, page: Path | str) -> float:
        """Opens a file or an address. Returns the seconds that it took to load, its scripts included."""
        self.driver.get(page if isinstance(page, str) else page.as_uri())
        return self.run(LOADED) / 1000

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns, run in the page."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the page has written on the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser that is gone afterwards. profile: a new folder for its files."""
    chromium, chromedriver = program("chromium"), program("chromedriver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        driver.get("about:blank")  # ends the browser's own page in a new window, whose requests are not ours
        driver.get_log("performance")
        yield Browser(driver)
    finally:
        driver.quit()


# For every text that is seen: its contrast to what is behind it. Text of an SVG stands on the shape before it.
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function parts(colour) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function light([r, g, b]) {
  const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}
function ground(element) {
  for (let e = element; e; e = e.parentElement) {
    const colour = parts(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return parts("white");
}
const shapes = new Map();
function behind(element) {
  const svg = element.ownerSVGElement;
  if (!svg) return ground(element);
  if (!shapes.has(svg)) {
    const filled = [...svg.querySelectorAll("rect, circle, path, use")].filter((each) => !each.closest("defs"));
    shapes.set(svg, filled.map((each) => [each, each.getBoundingClientRect(), getComputedStyle(each).fill])
      .filter(([, , fill]) => fill !== "none" && !fill.startsWith("url")));
  }
  const own = element.getBoundingClientRect(), x = own.x + own.width / 2, y = own.y + own.height / 2;
  const below = shapes.get(svg).filter(([each, box]) => box.left <= x && x <= box.right && box.top <= y && y <= box.bottom
    && each.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING).at(-1);
  return below ? parts(below[2]) : ground(element);
}
const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, style = getComputedStyle(element);
  if (!walker.currentNode.data.trim() || style.visibility === "hidden" || !element.getClientRects().length) continue;
  if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
  const text = parts(element.ownerSVGElement ? style.fill : style.color), [a, b] = [light(text), light(behind(element))];
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.tagName + " " + walker.currentNode.data.trim().slice(0, 30)]);
}
return found;
"""  # noqa: E501


# Chooses values in the fields of a page, by their ids.
SET = """
for (const [id, value] of arguments[0]) {
  const field = document.getElementById(id);
  field.value = value;
  if (field.value !== String(value)) throw new Error(id + " cannot be " + value);
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
}
"""


def easy_to_use(browser: Browser, file: Path, states: Sequence = ((),), texts: int = 100) -> None:
    """Fails unless a page opens quickly, can be read in light, dark and on a telephone, and asks nobody for anything.

    states: what is chosen in the page before each look at it. texts: how many it has at least.
    """
    browser.requests()
    for dark in (False, True):
        for width in (1280, 360):
            browser.show(width, dark=dark)
            assert 0 < min(browser.open(file) for _ in range(3)) < 2  # the machine may be busy with something else
            browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
            for asked in states:
                browser.run(SET, asked)
                assert browser.run("return document.documentElement.scrollWidth") == width
                found = browser.run(CONTRAST)
                assert len(found) > texts and not [each for each in found if each[0] < 4.5]  # WCAG AA
    assert all(url.startswith(("file:", "data:")) for url in browser.requests()) and browser.complaints() == []
