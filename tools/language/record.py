# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare violations with the exceptions and with the recorded numbers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Iterable, Mapping, Sequence

from language.rules import Hit

#: Number of violations by file and kind.
Counts = Mapping[str, Mapping[str, int]]

HEADER = """\
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Violations of the language rules that remain in each file. `make language-record` lowers the numbers; a new violation fails.
"""


@dataclass(frozen=True)
class Accepted:
    """Accepted violations in files that match a pattern, with the reason.

    An empty `kind` accepts all kinds. An empty `text` accepts all texts. Otherwise the excerpt of the violation must
    contain `text`.
    """

    file: str
    reason: str
    kind: str = ""
    text: str = ""

    def accepts(self, name: str, hit: Hit) -> bool:
        return fnmatchcase(name, self.file) and self.kind in ("", hit.kind) and self.text.lower() in hit.excerpt.lower()


def without_exceptions(
    hits: Mapping[str, Sequence[Hit]], exceptions: Iterable[Accepted]
) -> tuple[dict[str, list[Hit]], list[Accepted]]:
    """Return the violations that are not accepted, and the unused exceptions."""
    unused = list(exceptions)
    known = tuple(unused)
    left: dict[str, list[Hit]] = {}
    for name, found in hits.items():
        left[name] = []
        for hit in found:
            accepting = next((each for each in known if each.accepts(name, hit)), None)
            if accepting is None:
                left[name].append(hit)
            elif accepting in unused:
                unused.remove(accepting)
    return left, unused


def count(hits: Mapping[str, Sequence[Hit]]) -> dict[str, dict[str, int]]:
    """Return the number of violations by file and kind. Files without any are omitted."""
    return {name: dict(Counter(hit.kind for hit in found)) for name, found in hits.items() if found}


def read(path: Path) -> dict[str, dict[str, int]]:
    """Return the recorded numbers. Each line is `FILE: KIND NUMBER, KIND NUMBER`.

    A merge keeps the lines of both sides (.gitattributes), so a file may have several lines. The result has the lowest
    number of each kind.
    """
    counts: dict[str, dict[str, int]] = {}
    for line in path.read_text("utf-8").splitlines():
        name, _colon, numbers = line.rpartition(": ")
        if not line.startswith("#") and name:
            kinds = {kind: int(number) for kind, number in re.findall(r"(\w+) (\d+)", numbers)}
            known = counts.get(name, kinds)
            counts[name] = {kind: min(kinds[kind], known[kind]) for kind in kinds if kind in known}
    return counts


def write(path: Path, counts: Counts) -> None:
    """Write the numbers, sorted by file."""
    lines = [
        "%s: %s\n" % (name, ", ".join("%s %d" % (kind, number) for kind, number in sorted(kinds.items())))
        for name, kinds in sorted(counts.items())
        if kinds
    ]
    path.write_text(HEADER + "".join(lines), "utf-8")


def raised(counts: Counts, recorded: Counts) -> list[tuple[str, str, int, int]]:
    """Return (file, kind, number, recorded number) for each number above its record."""
    return [
        (name, kind, number, recorded.get(name, {}).get(kind, 0))
        for name, kinds in sorted(counts.items())
        for kind, number in sorted(kinds.items())
        if number > recorded.get(name, {}).get(kind, 0)
    ]


def lowered(counts: Counts, recorded: Counts) -> dict[str, dict[str, int]]:
    """Return the lower of the recorded and the current number, by file and kind."""
    lower = {}
    for name, kinds in recorded.items():
        present = counts.get(name, {})
        left = {kind: min(number, present.get(kind, 0)) for kind, number in kinds.items()}
        if any(left.values()):
            lower[name] = {kind: number for kind, number in left.items() if number}
    return lower
