"""Turns equations into HTML with subscripts and superscripts. In the source they are blocks of code with the language
`equation`, readable in an editor, a terminal and on a code host: θ_k, β^(K-k), x_{t-1}.
"""

import html
import re

BLOCK = re.compile(r"^```equation\n(.*?)^```$", re.S | re.M)
# An index or a power: one word, or in braces or parentheses, which are not shown.
RAISED = re.compile(r"([_^])(?:\{([^{}]*)\}|\(([^()]*(?:\([^()]*\)[^()]*)*)\)|([^\W_]+))")


def shown(text: str) -> str:
    """A page with its equations as HTML."""
    return BLOCK.sub(lambda found: f'<div class="equation" role="math">{typeset(found[1])}</div>', text)


def typeset(equation: str) -> str:
    """One block of equations, line by line."""
    lines = [html.escape(line.rstrip()).replace("&lt;-", "←") for line in equation.splitlines()]
    return "".join(f"<div>{raised(line) or '&nbsp;'}</div>" for line in lines)


def raised(line: str) -> str:
    """A line with its indices as subscripts and its powers as superscripts."""

    def small(found: re.Match[str]) -> str:
        tag, inner = {"_": "sub", "^": "sup"}[found[1]], found[2] or found[3] or found[4] or ""
        return f"<{tag}>{raised(inner)}</{tag}>"

    return RAISED.sub(small, line)
