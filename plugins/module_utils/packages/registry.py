# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the package managers."""

from __future__ import annotations

from typing import Callable, Union

from .apt import Apt
from .dnf import Dnf

PackageManager = Union[Apt, Dnf]
MANAGERS: dict[str, Callable[..., PackageManager]] = {"apt": Apt, "dnf": Dnf}
