# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Return the name of the account that has a lease."""

from __future__ import annotations

import re

from ..keep.owner import user_name
from ..printable import printable


def account_name(uid: int) -> str:
    """Return an account's name for records.

    The name has no spaces and no control characters.
    """
    name = printable(user_name(uid))
    return name if re.fullmatch(r"\S{1,255}", name) else "uid:%d" % uid
