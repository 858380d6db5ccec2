# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and verify repository keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Sequence

from ..errors import PlanError
from ..http_opener import FAILURES, Request, opener
from .model import Owner
from .openpgp import KeyFormatError, binary, fingerprints

#: Maximum size of a key in bytes. Key rings have a few kilobytes.
_LIMIT_BYTES = 1 << 20


def of(keyring: str) -> tuple[str, ...]:
    """Return the fingerprints of a key ring's keys.

    Returns an empty tuple if the file is missing, and ("damaged",) if it is not a key ring.
    """
    try:
        content = Path(keyring).read_bytes()
        return fingerprints(content) if content else ()
    except OSError:
        return ()
    except KeyFormatError:
        return ("damaged",)


def trusts(keys: Sequence[str], trusted: Sequence[str]) -> bool:
    """Return whether a key ring has at least one key, and only trusted keys."""
    return bool(keys) and set(keys) <= set(trusted)


def normal(texts: Sequence[str]) -> tuple[str, ...]:
    """Return fingerprints in upper case without blanks, for comparison."""
    return tuple(text.replace(" ", "").upper() for text in texts)


def verified(owner: Owner, keyring: str, trusted: Sequence[str], given: str, url: str) -> bytes:
    """Return the verified key of the repository.

    Takes the key from the key ring, from `given`, or else from the address. Raises PlanError if the fingerprint is not
    trusted or the key cannot be fetched.
    """
    if not trusted:
        raise PlanError(
            owner.role + "_repository_fingerprints",
            "it is empty, so no key is trusted",
            "Set it to the fingerprint of the repository's signing key, as its vendor publishes it.",
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
            "this is not a key: %s" % error,
            "See %s_repository_key_url. Nothing was changed." % owner.role,
        ) from None
    if not set(found) <= set(trusted):
        raise PlanError(
            where,
            "the key has the fingerprint %s, but the trusted fingerprint is %s"
            % (", ".join(found), ", ".join(trusted)),
            "If the repository has a new key, set %s_repository_fingerprints. Otherwise someone may have intercepted the "
            "connection. Nothing was changed." % owner.role,
        )
    return binary(content)


def _fetch(owner: Owner, url: str) -> bytes:
    request = Request(url, headers={"User-Agent": "openfleet.gpu"})
    try:
        # Accept any address after a redirect, because the key's fingerprint is verified.
        with opener(redirects=True).open(request, timeout=30) as answer:
            return answer.read(_LIMIT_BYTES)
    except FAILURES as error:
        raise PlanError(
            url,
            "the repository's key cannot be fetched: %s" % error,
            "Check that the address answers (proxy: %s), or give the key with %s_repository_key. Nothing was changed."
            % (os.environ.get("https_proxy") or "none is set", owner.role),
        ) from None
