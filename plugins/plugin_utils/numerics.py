# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Import NumPy where it is installed.

Modules that calculate with NumPy import `np` from here, so that they can be imported without NumPy, as ansible-test and
ansible-doc do. Code that starts such a calculation calls `require` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["np", "require"]

_MISSING: ImportError | None = None
if TYPE_CHECKING:
    import numpy as np
else:
    try:
        import numpy as np
    except ImportError as error:
        np, _MISSING = None, error


def require() -> None:
    """Raise ImportError if NumPy is not installed."""
    if _MISSING is not None:
        raise _MISSING
