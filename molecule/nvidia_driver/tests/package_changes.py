# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the package changes of a plan with the changes between two states.

The format is {name: new version, or None if removed}.
"""

from __future__ import annotations


def foretold(steps) -> dict[str, str | None]:
    """Return the package changes in the steps of a plan."""
    found = {}
    for step in steps:
        words = step.split()
        if words[0] == "install" and len(words) == 3:
            found[words[1]] = words[2]
        elif words[0] in ("upgrade", "downgrade"):
            found[words[1]] = words[4]
        elif words[0] == "remove":
            found[words[1]] = None
    return found


def differences(before, after) -> dict[str, str | None]:
    """Return the package changes between two states."""
    names = before.packages.keys() | after.packages.keys()
    return {name: after.packages.get(name) for name in names if before.packages.get(name) != after.packages.get(name)}
