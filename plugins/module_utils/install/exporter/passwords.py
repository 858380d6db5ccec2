# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hash passwords with the C library (crypt(3)).

A password is hashed only if its current hash does not match.
"""

from __future__ import annotations

import base64
import ctypes
import re
import secrets

from .host import refuse

# A bcrypt hash in the format of exporter-toolkit: crypt(5) of libxcrypt.
BCRYPT = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}\Z")
COST = 10


def crypt_function():
    for name in ("libcrypt.so.1", "libcrypt.so.2"):
        try:
            function = ctypes.CDLL(name).crypt
        except OSError:
            continue
        function.restype = ctypes.c_char_p
        return lambda password, setting: (function(password.encode(), setting.encode()) or b"").decode()
    return refuse(
        "dcgm_exporter_basic_auth_users: the host has no libcrypt for hashing. Install libcrypt1 or libxcrypt."
    )


def hashes(users: dict[str, str], current: dict[str, str]) -> dict[str, str]:
    """Return a hash for each user. A current hash is kept if it matches."""
    crypt = crypt_function() if users else None
    result = {}
    for user, password in sorted(users.items()):
        if len(password.encode()) > 72:
            refuse(
                "dcgm_exporter_basic_auth_users: the password of %s has more than the 72 bytes that bcrypt supports."
                % user
            )
        old = current.get(user, "")
        if BCRYPT.match(old) and secrets.compare_digest(crypt(password, old), old):
            result[user] = old
            continue
        salt = base64.b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("+", ".")
        # The last character of the salt has only two significant bits. "O" is valid.
        new = crypt(password, "$2b$%02d$%sO" % (COST, salt[:21]))
        if not BCRYPT.match(new):
            refuse("dcgm_exporter_basic_auth_users: the host's libcrypt cannot make bcrypt hashes.")
        result[user] = new
    return result
