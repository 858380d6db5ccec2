# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define values for packages."""

from __future__ import annotations

from ..frozen import frozen


@frozen
class Owner:
    """The role that installs packages.

    It has the prefix of the role's variables, and the name of the files that the role writes.
    """

    role: str
    name: str
    #: The software in words: "the driver" or "the toolkit".
    what: str


@frozen
class Package:
    """An installed package.

    `broken` is true if its installation failed or was interrupted.
    """

    name: str
    version: str
    held: bool = False
    broken: bool = False


@frozen
class Step:
    """A step: its kind, and the packages or files that it changes (`items`)."""

    kind: str
    text: str
    items: tuple[str, ...] = ()
