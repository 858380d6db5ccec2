# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Name the account that a lease belongs to."""

from __future__ import annotations

import re

from ..keep.owner import user_name
from ..printable import printable


def account_name(uid: int) -> str:
    """Return the name of an account for records.

    The name has no spaces and no control characters.
    """
    name = printable(user_name(uid))
    return name if re.fullmatch(r"\S{1,255}", name) else "uid:%d" % uid
