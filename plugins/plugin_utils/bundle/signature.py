# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures, as the hosts' package managers verify them: by gpgv, with one key whose fingerprint is trusted, and nothing else.

gpgv knows no web of trust and no keyring but the one it is given (gpgv(1)).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Sequence

from ...module_utils import command
from ...module_utils.packages.openpgp import KeyFormatError, binary, fingerprints
from .model import BundleError, Source

#: What gpgv says of a signature first (doc/DETAILS of GnuPG), before the VALIDSIG of one that holds.
_VERDICTS = ("GOODSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG", "BADSIG", "ERRSIG")


def check_key(content: bytes, source: Source, where: str) -> bytes:
    """The key in the form gpgv reads, once all of it is trusted. Raises BundleError."""
    try:
        found = fingerprints(content)
    except KeyFormatError as error:
        raise BundleError(where, "this is no key: %s" % error, "See %s_repository_key_url." % source.role) from None
    if not set(found) <= set(source.fingerprints):
        raise BundleError(
            where,
            "the key has the fingerprint %s, and %s is to be trusted"
            % (", ".join(found), ", ".join(source.fingerprints)),
            "If NVIDIA has a new key, set %s_repository_fingerprints; else the connection is intercepted. Nothing of it was kept."
            % source.role,
        )
    return binary(content)


def clearsigned(content: bytes, key: bytes, trusted: Sequence[str], where: str) -> bytes:
    """What was signed of a file that holds text and signature. Raises BundleError."""
    return _verify({"signed": content}, key, trusted, where)


def detached(content: bytes, signature: bytes, key: bytes, trusted: Sequence[str], where: str) -> bytes:
    """The content, once the signature beside it holds. Raises BundleError."""
    _verify({"signature": signature, "content": content}, key, trusted, where)
    return content


def _verify(files: dict[str, bytes], key: bytes, trusted: Sequence[str], where: str) -> bytes:
    program = command.program("gpgv") or command.program("gpgv2")
    if not program:
        raise BundleError("this controller", "it has no gpgv, which verifies signatures", "apt-get install gpgv")
    with tempfile.TemporaryDirectory(prefix="openfleet-bundle-") as name:
        folder = Path(name)
        (folder / "key.gpg").write_bytes(key)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        # apt refuses SHA-1 too. gpgv gives out what was signed, which for a clear-signed text is not the whole file.
        options = ["--homedir", name, "--keyring", str(folder / "key.gpg"), "--status-fd", "1", "--weak-digest", "SHA1"]
        output = ["--output", str(folder / "text")] if len(files) == 1 else []
        done = command.run_to_end([program, *options, *output, *(str(folder / file) for file in files)])
        problem = judge(done.stdout, trusted)
        if problem:
            raise BundleError(
                where, problem, "Hosts refuse it too. Take a mirror that keeps the signature; nothing of it was kept."
            )
        return (folder / "text").read_bytes() if output else b""


def judge(status: str, trusted: Sequence[str]) -> str:
    """Empty where a trusted key has signed and no signature is wrong; one of a key that is not known is none at all."""
    verdict, good, others = "", False, []
    for line in status.splitlines():
        words = line.split()[1:]
        if not words:
            continue
        if words[0] in _VERDICTS:
            verdict = words[0]
            others.append("%s %s" % (verdict, words[1] if len(words) > 1 else ""))
        if words[0] == "VALIDSIG" and verdict == "GOODSIG" and words[-1] in trusted:
            good = True
    if any(found.startswith("BADSIG") for found in others):
        return "the signature is wrong: it has been changed since it was signed"
    if good:
        return ""
    return "it is not signed by a key to be trusted (%s)" % ("; ".join(others).strip() or "there is no signature")
