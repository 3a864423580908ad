"""Docstrings as Markdown: paragraphs, indented equations and drawings, and lists of arguments ("name: what it is")."""

import inspect
import re
import textwrap
from typing import Any

SECTION = re.compile(r"^(Arguments|Returns|Raises|Example|Examples):\s*(.*)$")
NAME = r"\*{0,2}[A-Za-z_][\w.]*(?:\([^)]*\))?"
NAMED = re.compile(rf"^({NAME}(?:, {NAME})*)(?: -> ([^:]+))?: (.*)$")
PAGE = re.compile(r"(?<![\w/`])docs/([\w-]+\.md)")  # relative to a folder of docs/, where all generated pages are
CODE = re.compile(r"(`+[^`]*`+)")


def of(thing: Any) -> str:
    """The docstring of an object as Markdown."""
    return markdown(inspect.getdoc(thing) or "")


def markdown(text: str, language: str = "", names: bool = True) -> str:
    """A docstring's text as Markdown.

    Arguments:
        text: the docstring, without its own indentation.
        language: of indented blocks.
        names: whether a line such as "batch: the batch's number" is an item of a list of names.
    """
    out: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if lines and ">>>" in lines[0]:
            out.append(fenced(lines, "python"))
        elif all(line.startswith("    ") for line in lines):
            out.append(fenced(lines, language))
        else:
            out += paragraph(lines) if names else ["\n".join(map(escaped, lines))]
    return "\n\n".join(out)


def fenced(lines: list[str], language: str) -> str:
    """Indented lines as a block of code."""
    return f"```{language}\n{textwrap.dedent(chr(10).join(lines))}\n```"


def paragraph(lines: list[str]) -> list[str]:
    """A block that is not indented: a section, a list of names, a list, or a paragraph."""
    section = SECTION.match(lines[0])
    if section:
        rest = [section[2]] if section[2] else []
        inner = textwrap.dedent("\n".join(lines[1:])).splitlines()
        if any(">>>" in line for line in inner):
            return [f"**{section[1]}**", fenced(inner, "python")]
        return [f"**{section[1]}**", *paragraph_of_names([*rest, *inner])]
    return paragraph_of_names(lines)


def paragraph_of_names(lines: list[str]) -> list[str]:
    """Lines, some of which begin with names and a colon. Each such line, with the lines below it, is an item."""
    out: list[str] = []
    for line in lines:
        named = NAMED.match(line)
        if named:
            names = ", ".join(f"`{name}`" for name in re.split(r", (?![^(]*\))", named[1]))
            gives = f" → `{named[2]}`" if named[2] else ""
            out.append(f"- {names}{gives}: {escaped(named[3])}")
        elif line.startswith("- "):
            out.append(escaped(line))
        elif out and out[-1].startswith("- "):
            out[-1] += "\n  " + escaped(line.strip())
        else:
            out.append(escaped(line.strip()))
    return [joined(out)]


def joined(lines: list[str]) -> str:
    """Lines as Markdown; a list has an empty line before it and after it."""
    text, before = "", ""
    for line in lines:
        item, was = line.startswith("- "), before.startswith("- ")
        text += ("\n\n" if before and item != was else "\n" if before else "") + line
        before = line
    return text


def escaped(line: str) -> str:
    """A line with stars and brackets outside of code escaped. The name of a page becomes a link."""
    parts = [part if i % 2 else re.sub(r"([*<>\[\]])", r"\\\1", part) for i, part in enumerate(CODE.split(line))]
    return PAGE.sub(lambda found: f"[{title(found[1])}](../{found[1]})", "".join(parts))


def title(page: str) -> str:
    """The text of a link to a page: Own modules, for own-modules.md."""
    return page.removesuffix(".md").replace("-", " ").capitalize()
