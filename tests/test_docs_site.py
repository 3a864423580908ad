"""What makes the site of the documentation (tools/docs), without Sphinx: .ci/run builds the site itself."""

from pathlib import Path

import pytest

from tools.docs import links, made, staging

ROOT = Path(__file__).resolve().parent.parent
GOOD = '<body id="top"><a href="b.html#there">b</a><a href="https://jax.dev">out</a><img src="a.png"></body>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html">a</a></p>')
    (tmp_path / "a.png").touch()
    return tmp_path


def test_a_dead_link_and_a_request_to_another_host_are_found(site):
    assert links.check(site) == []
    for added, said in (
        ('<a href="c.html">', "a.html: c.html does not exist"),
        ('<a href="b.html#nowhere">', "a.html: b.html#nowhere has no anchor nowhere"),
        ('<script src="https://cdn.example/mathjax.js"></script>', "is loaded from another host"),
        ('<img src="//other.example/a.png">', "is loaded from another host"),
        ('<iframe src="explorer.html"></iframe>', "explorer.html does not exist"),
    ):
        (site / "a.html").write_text(GOOD.replace("</body>", f"{added}</body>"))
        (found,) = links.check(site)
        assert said in found


def test_links_within_code_are_left_alone_and_one_to_nothing_is_told(tmp_path):
    found = staging.Links(ROOT, tmp_path, {"docs/a.md", "docs/methods/fdg.md"}, made.meant(ROOT))
    change = lambda part: staging.LINK.sub(lambda match: found.link("docs/a.md", match), part)  # noqa: E731
    assert staging.outside_code("```\n[x](gone.md)\n```\n", change) == "```\n[x](gone.md)\n```\n"
    assert change("[x](../fdg_jax/methods/fdg.py)") == "[x](methods/fdg.md)"  # its page
    assert change("[x](../tests/oracle.py)") == "[x](../source/tests/oracle.py.md)" and found.wrong == []
    change("[x](gone.md)")
    assert found.wrong == ["docs/a.md: gone.md does not exist"]
