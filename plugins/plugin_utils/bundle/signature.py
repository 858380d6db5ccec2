# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify signatures like the hosts' package managers.

These use gpgv with one key that has a trusted fingerprint. gpgv uses only the given keyring and no web of trust
(gpgv(1)).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Sequence

from ...module_utils.packages.openpgp import KeyFormatError, binary, fingerprints
from ...module_utils.processes import command
from .model import BundleError, Source

#: Keywords of a signature's first status line (doc/DETAILS of GnuPG). A valid signature has a second line with
#: VALIDSIG.
_VERDICTS = ("GOODSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG", "BADSIG", "ERRSIG")


def check_key(content: bytes, source: Source, where: str) -> bytes:
    """Return the key in the format of gpgv.

    Raises BundleError if a fingerprint of the key is not trusted.
    """
    try:
        actual = fingerprints(content)
    except KeyFormatError as error:
        raise BundleError(
            where, "this is not a key: %s" % error, "Check %s_repository_key_url." % source.role
        ) from None
    if not set(actual) <= set(source.fingerprints):
        raise BundleError(
            where,
            "the key has the fingerprint %s, but the trusted fingerprint is %s"
            % (", ".join(actual), ", ".join(source.fingerprints)),
            "If NVIDIA has a new key, set %s_repository_fingerprints. If not, someone may have intercepted the connection. "
            "The key was not kept." % source.role,
        )
    return binary(content)


def clearsigned(content: bytes, key: bytes, trusted: Sequence[str], where: str) -> bytes:
    """Return the signed text of a clear-signed file.

    Raises BundleError if the signature is invalid or not trusted.
    """
    return _verify({"signed": content}, key, trusted, where)


def detached(content: bytes, signature: bytes, key: bytes, trusted: Sequence[str], where: str) -> bytes:
    """Verify the detached signature of a file, and return the file's content.

    Raises BundleError if the signature is invalid or not trusted.
    """
    _verify({"signature": signature, "content": content}, key, trusted, where)
    return content


def _verify(files: dict[str, bytes], key: bytes, trusted: Sequence[str], where: str) -> bytes:
    program = command.program("gpgv") or command.program("gpgv2")
    if not program:
        raise BundleError("this controller", "gpgv is missing, which verifies signatures", "apt-get install gpgv")
    with tempfile.TemporaryDirectory(prefix="openfleet-bundle-") as name:
        folder = Path(name)
        (folder / "key.gpg").write_bytes(key)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        # Refuse SHA-1, as apt does. Let gpgv write the signed text, because a clear-signed file may also contain other
        # text.
        options = ["--homedir", name, "--keyring", str(folder / "key.gpg"), "--status-fd", "1", "--weak-digest", "SHA1"]
        output = ["--output", str(folder / "text")] if len(files) == 1 else []
        done = command.run_to_end([program, *options, *output, *(str(folder / file) for file in files)])
        problem = judge(done.stdout, trusted)
        if problem:
            raise BundleError(
                where, problem, "Hosts would refuse it too, and it was not kept. Use a mirror that keeps the signature."
            )
        return (folder / "text").read_bytes() if output else b""


def judge(status: str, trusted: Sequence[str]) -> str:
    """Return the problem with a signature, or "" if it is valid and trusted.

    `status` has gpgv's status lines. Ignores signatures by unknown keys.
    """
    verdict, good, verdicts = "", False, []
    for line in status.splitlines():
        words = line.split()[1:]
        if not words:
            continue
        if words[0] in _VERDICTS:
            verdict = words[0]
            verdicts.append("%s %s" % (verdict, words[1] if len(words) > 1 else ""))
        if words[0] == "VALIDSIG" and verdict == "GOODSIG" and words[-1] in trusted:
            good = True
    if any(line.startswith("BADSIG") for line in verdicts):
        return "the signature is wrong: the content was changed after signing"
    if good:
        return ""
    return "it is not signed by a trusted key (%s)" % ("; ".join(verdicts).strip() or "no signature")
