# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What packages are talked of in."""

from __future__ import annotations

from ..frozen import frozen


@frozen
class Owner:
    """Who brings packages: the role by whose name its variables begin, and the name of the files that it writes."""

    role: str
    name: str
    #: What it brings, in words: the driver, the toolkit.
    what: str


@frozen
class Package:
    """An installed package. `broken`: its installation was begun and did not end well."""

    name: str
    version: str
    held: bool = False
    broken: bool = False


@frozen
class Step:
    """One thing to do. `kind` names the way it is done, `items` what it is done to."""

    kind: str
    text: str
    items: tuple[str, ...] = ()
