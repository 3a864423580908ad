"""The parser of every command line: argparse, with a single message for any mistake."""

import argparse
import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from fdg_jax.errors import BadInput, did_you_mean
from fdg_jax.options.fields import from_word

NUMBER = re.compile(r"-\d|-\.\d|-inf|-nan", re.IGNORECASE)
WIDEST = 100  # columns of --help: longer lines are hard to read, however wide the terminal


class Help(argparse.HelpFormatter):
    """Breaks the lines of --help between words only: a flag or a value with a hyphen stays whole. Lines that begin with
    two spaces, such as examples, stay as they are, and an empty line ends a paragraph."""

    def __init__(self, *arguments: Any, **named: Any):
        width = min(WIDEST, shutil.get_terminal_size().columns - 2)
        super().__init__(*arguments, **{"width": width, **named})

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        made: list[str] = []
        for stays, lines in itertools.groupby(text.splitlines(), lambda line: not line or line.startswith("  ")):
            whole = list(lines)
            made += whole if stays else self._split_lines("\n".join(whole), width - len(indent))
        return "\n".join(indent + line for line in made)


def continued(command: str, width: int = 80) -> str:
    """A command line for --help, indented. A long command line is broken before a flag, with a backslash as in a
    shell."""
    parts = re.split(r" (?=--)", command)
    lines = ["  " + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:  # a space, and room for " \\" at the end
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append("      " + part)
    return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises BadInput, knows no abbreviations, and takes --train_size for --train-size."""

    def __init__(self, *arguments: Any, **named: Any):
        usual = {"allow_abbrev": False, "exit_on_error": False, "formatter_class": Help}
        super().__init__(*arguments, **{**usual, **named})
        for kind in (int, float):
            self.register("type", kind, partial(from_word, kind=kind))
        self._negative_number_matcher = NUMBER  # Python 3.11's own pattern takes -1e3 and -inf for flags

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}. --help explains the flags.")

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        """Refuses unknown words as well, so that a subcommand's parser can suggest the subcommand's own flags."""
        try:
            found, left = super().parse_known_args(None if args is None else self._spelled(args), namespace)
        except argparse.ArgumentError as error:
            raise BadInput(self._explained(error)) from None
        if left:
            raise BadInput(self._left_over(left[0]))
        return found, []

    def _spelled(self, words: Sequence[str]) -> list[str]:
        """The words, with hyphens instead of underscores in flags."""
        spelled: list[str] = []
        for word in words:
            flag, equals, value = word.partition("=")
            flag = flag.replace("_", "-")
            spelled.append(flag + equals + value if flag in self._option_string_actions else word)
        return spelled

    def _explained(self, error: argparse.ArgumentError) -> str:
        """argparse's error about a flag, as a sentence."""
        actions = self._option_string_actions.values()  # argparse has no public list of flags
        action = next((one for one in actions if "/".join(one.option_strings) == error.argument_name), None)
        if action is None:
            return f"{error}. --help explains the flags."
        flag = action.option_strings[0]
        if error.message == "expected one argument":
            return f"{flag} needs a value, e.g. {flag} {self._example(action)}."
        if error.message.startswith("ignored explicit argument"):
            return f"{flag} takes no value. Write {' or '.join(action.option_strings)}."
        return f"{flag}: {error.message.rstrip('.')}. --help explains the flags."

    def _example(self, action: argparse.Action) -> Any:
        """A value that a flag could have."""
        default = getattr(action, "example", action.default)
        return action.metavar or action.dest.upper() if default in (None, argparse.SUPPRESS) else default

    def _left_over(self, word: str) -> str:
        """The message about a word that belongs to no flag."""
        if not word.startswith("-") or NUMBER.match(word):
            return f"{word!r} does not follow a flag. Write --flag value; --help lists the flags."
        written = word.partition("=")[0]
        hint = did_you_mean("--" + written.lstrip("-").replace("_", "-"), self._option_string_actions)
        return f"{written} is not a flag of this command.{hint or ' --help lists the flags.'}"
