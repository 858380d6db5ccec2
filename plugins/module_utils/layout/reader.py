# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read YAML-like data into typed values, and collect all problems.

Each problem has its place and its fix. A value that cannot be read is reported and becomes None, so that reading
continues. The module is independent of `gpu_layout`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Callable, Iterable, NamedTuple, Sequence, TypeVar

from ..errors import Problem

T = TypeVar("T")

_LONGEST_QUOTE = 60
_LONGEST_NUMBER = 20


class Key(NamedTuple):
    """A key of a mapping, optional or required. `example` shows its use in messages."""

    example: str
    required: bool = False


def quoted(value: object) -> str:
    """Return the value in quotes, shortened for messages."""
    text = number(value) if is_integer(value) else str(value)
    return '"%s"' % (text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")


def number(value: float) -> str:
    """Return the number in digits.

    For a very long number, which Python refuses to format, returns its length instead.
    """
    if isinstance(value, int) and abs(value) >= 10**_LONGEST_NUMBER:
        return "a number of more than %d digits" % _LONGEST_NUMBER
    return "%s" % value


def described(value: object) -> str:
    """Return YAML's name for the type of a value."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "the boolean %s" % str(value).lower()
    if isinstance(value, (int, float)):
        text = number(value)
        return text if text.startswith("a number") else "the number %s" % text
    if isinstance(value, str):
        return "the string %s" % quoted(value)
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return "a %s" % type(value).__name__


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the most similar known word, or None.

    Among equally similar words, one that starts with `word` is preferred. If no word is similar, returns the only known
    word that starts with `word`. For example, "sm" leads to "sm_percent".
    """
    # Import here, because a correct layout does not need this module.
    import difflib

    text = str(word)[:_LONGEST_QUOTE].lower() if isinstance(word, str) else ""
    known = list(known)
    matches = difflib.get_close_matches(text, known, n=3)
    longer = [match for match in matches if match.startswith(text) and len(match) == len(matches[0])]
    parts = [each for each in known if each.startswith(text + "_")]
    return next(iter([*longer, *matches, *(parts if len(parts) == 1 else [])]), None)


def is_digits(text: str) -> bool:
    """Return whether the text is a number in digits.

    `str.isdigit` also accepts superscripts, which `int` refuses.
    """
    return text.isascii() and text.isdigit()


def is_integer(value: object) -> bool:
    """Return whether the value is a whole number, and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


class Node:
    """A value with its place (``gpu_layout[0].mig``), an example and its problems."""

    def __init__(self, value: Any, where: str, problems: list[Problem], example: str = "") -> None:
        self.value = value
        self.where = where
        self.example = example
        self.problems = problems

    def report(self, problem: str, cure: str) -> None:
        self.problems.append(Problem(self.where, problem, cure))

    def report_type(self, wanted: str) -> None:
        """Report a value of the wrong type."""
        self.report("expected %s, got %s" % (wanted, described(self.value)), self._type_cure())

    def _type_cure(self) -> str:
        hint = ""
        if isinstance(self.value, bool):
            hint = " (YAML reads yes, no, on, off, true and false as booleans; quotes make them text)"
        elif isinstance(self.value, str) and is_digits(self.value.strip()):
            return "Write `%s` without quotes. A number in quotes is text." % self.example
        elif isinstance(self.value, str) and self.value.lstrip()[:1] in ("[", "{"):
            name = re.split(r"[.\[]", self.where, maxsplit=1)[0]
            return (
                "An INI inventory and -e NAME=VALUE pass it as text. Write it as YAML in group_vars or host_vars, or pass JSON: "
                "-e '{\"%s\": %s}'." % (name, "[...]" if self.value.lstrip()[0] == "[" else "{...}")
            )
        return "Write it like `%s`%s." % (self.example, hint)

    def text(self) -> str | None:
        if isinstance(self.value, str):
            return str(self.value)
        self.report_type("a string")
        return None

    def boolean(self) -> bool | None:
        if isinstance(self.value, bool):
            return self.value
        self.report_type("true or false")
        return None

    def integer(self, minimum: int, maximum: int | None = None) -> int | None:
        span = "of %d or more" % minimum if maximum is None else "from %d to %d" % (minimum, maximum)
        if not is_integer(self.value):
            self.report_type("a whole number " + span)
        elif self.value < minimum or (maximum is not None and self.value > maximum):
            self.report("%s is out of range" % number(self.value), "Write a whole number %s." % span)
        else:
            return int(self.value)
        return None

    def ratio(self, minimum: float, maximum: float) -> float | None:
        if not is_integer(self.value) and not isinstance(self.value, float):
            self.report_type("a number")
        elif not minimum <= self.value <= maximum:
            cure = "Write a number from %g to %g." % (minimum, maximum)
            self.report("%s is out of range" % number(self.value), cure)
        else:
            return float(self.value)
        return None

    def choice(self, options: Sequence[str]) -> str | None:
        text = self.text()
        if text is None or text in options:
            return text
        guess = nearest(text, options)
        meant = "Did you mean %s? " % guess if guess else ""
        self.report("unknown value %s" % quoted(text), "%sIt is one of %s." % (meant, ", ".join(options)))
        return None

    def items(self, at_least: int, at_most: int | None = None) -> list[Node] | None:
        """Return a list's elements, or None after reporting an error.

        `at_least` is 0 if an empty list is valid.
        """
        if not isinstance(self.value, (list, tuple)):
            self.report_type("a list")
            return None
        if at_most is not None and len(self.value) > at_most:
            self.report("the list has %d elements" % len(self.value), "Write at most %d." % at_most)
            return None
        if len(self.value) < at_least:
            self.report("the list is empty", self._type_cure())
            return None
        return [
            Node(value, "%s[%d]" % (self.where, place), self.problems, self.example)
            for place, value in enumerate(self.value)
        ]

    def fields(self, keys: dict[str, Key]) -> Fields | None:
        """Return a mapping's fields, after reporting unknown and missing keys."""
        if not isinstance(self.value, Mapping):
            self.report_type("a mapping")
            return None
        for key in self.value:
            if key not in keys:
                guess = nearest(key, keys)
                meant = "Did you mean %s? " % guess if guess else ""
                place = Node(None, self._place(key), self.problems)
                place.report("unknown key", "%sKeys here are %s." % (meant, ", ".join(keys)))
        for key, meaning in keys.items():
            if meaning.required and key not in self.value:
                self.report("the key %s is missing" % key, "Add it, for example `%s`." % meaning.example)
        return Fields(
            {
                key: Node(self.value[key], self._place(key), self.problems, keys[key].example)
                for key in keys
                if key in self.value
            }
        )

    def _place(self, key: object) -> str:
        return "%s.%s" % (self.where, quoted(key)[1:-1])


class Fields:
    """The known fields of a mapping, each as a node."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    def __getitem__(self, key: str) -> Node:
        return self._nodes[key]

    def read(self, key: str, reader: Callable[[Node], T | None], default: T | None = None) -> T | None:
        """Return the field as read by `reader`, or the default if it is missing."""
        return reader(self._nodes[key]) if key in self._nodes else default
