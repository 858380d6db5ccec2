# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a how-to page's commands and files."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PAGES = Path(__file__).resolve().parents[1] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """Return a page's code blocks in this language."""
    text = (PAGES / page).read_text()
    return [textwrap.dedent(each) for each in re.findall(r"^ *```%s\n(.*?)^ *```" % language, text, re.M | re.S)]


def commands(page: str, prompt: str) -> list[str]:
    """Return a page's commands with this prompt ("$" or "#"), without the prompt."""
    return prompted("".join(blocks(page, "console")), prompt)


def prompted(text: str, prompt: str) -> list[str]:
    """Return a console block's commands with this prompt, without the prompt.

    A line that ends with a backslash continues in the next line.
    """
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(("$ ", "# ")):
            found.append(line)
        elif found and found[-1].endswith("\\"):
            found[-1] += "\n" + line
    return [each[2:] for each in found if each[0] == prompt]


def expected(page: str, command: str) -> str:
    """Return a command's expected output as a regular expression.

    Numbers and times can differ.
    """
    (block,) = [each for each in blocks(page, "console") if command in each]
    output = "".join(line + "\n" for line in block.splitlines() if not line.startswith(("$ ", "# ", " ")))
    assert output, f"{page} has no output of {command}"
    pattern = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", output)
    pattern = re.escape(pattern).replace("TIME", r"\d{4}-\d\d-\d\d \d\d:\d\d")
    # The lease's number, and its column's width.
    return re.sub(r"(?m)(lease\\ |^)\d+(\\ )+", r"\1\\d+ +", pattern)
