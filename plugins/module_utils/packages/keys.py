# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of repositories: which ones a host has, and how another comes to be trusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Sequence

from ..errors import PlanError
from ..http_opener import FAILURES, Request, opener
from .model import Owner
from .openpgp import KeyFormatError, binary, fingerprints

#: A key ring has some kilobytes; whatever is larger is something else.
_LIMIT_BYTES = 1 << 20


def of(keyring: str) -> tuple[str, ...]:
    """Fingerprints of the keys in a key ring; none where there is no file, and "damaged" where it is no key ring."""
    try:
        content = Path(keyring).read_bytes()
        return fingerprints(content) if content else ()
    except OSError:
        return ()
    except KeyFormatError:
        return ("damaged",)


def trusts(there: Sequence[str], trusted: Sequence[str]) -> bool:
    """Whether a key ring has keys that are to be trusted, and no others."""
    return bool(there) and set(there) <= set(trusted)


def normal(texts: Sequence[str]) -> tuple[str, ...]:
    """Fingerprints as they are compared, however people write them."""
    return tuple(text.replace(" ", "").upper() for text in texts)


def verified(owner: Owner, keyring: str, trusted: Sequence[str], given: str, url: str) -> bytes:
    """The repository's key: that of the key ring, or the one given, or else what the address has; once its fingerprint is one
    of those to be trusted. Raises PlanError."""
    if not trusted:
        raise PlanError(
            owner.role + "_repository_fingerprints",
            "there is no fingerprint to trust, so that no key can be trusted",
            "Set the fingerprint of the key that the repository is signed with, from its vendor.",
        )
    if trusts(of(keyring), trusted):
        return Path(keyring).read_bytes()
    where = owner.role + "_repository_key" if given else url
    content = given.encode() if given else _fetch(owner, url)
    try:
        found = fingerprints(content)
    except KeyFormatError as error:
        raise PlanError(
            where,
            "this is no key: %s" % error,
            "See %s_repository_key_url. Nothing was changed." % owner.role,
        ) from None
    if not set(found) <= set(trusted):
        raise PlanError(
            where,
            "the key has the fingerprint %s, and %s is to be trusted" % (", ".join(found), ", ".join(trusted)),
            "If the repository has a new key, set %s_repository_fingerprints; else the connection is intercepted. Nothing was "
            "changed." % owner.role,
        )
    return binary(content)


def _fetch(owner: Owner, url: str) -> bytes:
    request = Request(url, headers={"User-Agent": "openfleet.gpu"})
    try:
        # Elsewhere too: its fingerprint is what it is trusted by.
        with opener(redirects=True).open(request, timeout=30) as answer:
            return answer.read(_LIMIT_BYTES)
    except FAILURES as error:
        raise PlanError(
            url,
            "the repository's key cannot be fetched: %s" % error,
            "See that the address answers (proxy: %s), or give the key with %s_repository_key. Nothing was changed."
            % (os.environ.get("https_proxy") or "none is set", owner.role),
        ) from None
