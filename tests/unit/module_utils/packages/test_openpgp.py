# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute fingerprints from the bytes of repository keys, and refuse invalid keys."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.packages import openpgp
from tests.integration.patience import wait_until

#: A version 4 packet: tag 6 in the new format, with a one-octet length. Its fingerprint follows RFC 9580, 5.5.4.2.
BODY = bytes([4, 0x65, 0, 0, 0, 22, 9]) + b"an Ed25519 key, or so"
PACKET = bytes([0xC0 | 6, len(BODY)]) + BODY
FINGERPRINT = hashlib.sha1(b"\x99" + len(BODY).to_bytes(2, "big") + BODY).hexdigest().upper()


def armoured(content, header="Version: GnuPG v2\n\n"):
    lines = base64.encodebytes(content).decode()
    return (
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n%s%s=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n" % (header, lines)
    ).encode()


@pytest.mark.parametrize("content", [PACKET, armoured(PACKET), armoured(PACKET, "\n"), armoured(PACKET, "")])
def test_fingerprints_of_keys_in_both_forms(content):
    assert openpgp.fingerprints(content) == (FINGERPRINT,)
    assert openpgp.binary(content) == PACKET


def test_every_key_of_a_ring_counts():
    assert openpgp.fingerprints(PACKET + PACKET) == (FINGERPRINT, FINGERPRINT)
    assert openpgp.fingerprints(armoured(PACKET) + armoured(PACKET)) == (FINGERPRINT, FINGERPRINT)


def packet(tag, body=b"x"):
    """Return a packet in the new format, with a one-octet length."""
    return bytes([0xC0 | tag, len(body)]) + body


NO_KEYS = [
    b"<html>404</html>",
    armoured(PACKET)[:-40],
    b"-----BEGIN PGP MESSAGE-----\n",
    b"",
]


@pytest.mark.parametrize("content", NO_KEYS)
def test_invalid_keys(content):
    with pytest.raises(openpgp.KeyFormatError):
        openpgp.fingerprints(content)


@pytest.mark.parametrize("tag", [2, 13, 14, 17])
def test_packets_of_a_key_are_accepted_only_after_a_key(tag):
    assert openpgp.fingerprints(PACKET + packet(tag) + PACKET) == (FINGERPRINT, FINGERPRINT)
    with pytest.raises(openpgp.KeyFormatError, match="the packet with tag %d at byte 0 belongs to no key" % tag):
        openpgp.fingerprints(packet(tag) + PACKET)


@pytest.mark.parametrize("tag", [tag for tag in range(64) if tag not in (2, 6, 13, 14, 17)])
def test_every_other_packet_is_refused_with_its_tag_and_place(tag):
    for content in (PACKET + packet(tag), PACKET + packet(tag) + PACKET):
        with pytest.raises(openpgp.KeyFormatError) as error:
            openpgp.fingerprints(content)
        assert "the packet with tag %d at byte %d is not part of a public key" % (tag, len(PACKET)) in str(error.value)
    if tag < 16:
        # The first packet has the old format, in which the tag has four bits. It is tested with ASCII armor too.
        with pytest.raises(openpgp.KeyFormatError, match="tag %d at byte %d " % (tag, len(PACKET))):
            openpgp.fingerprints(armoured(PACKET + bytes([0x80 | tag << 2, 1, 0])))


@pytest.mark.parametrize(
    ("behind", "problem"),
    [
        (bytes([0xC0 | 13, 224, 65]), "tag 13 at byte %d has no fixed length"),
        (bytes([0xC0 | 2, 254, 65]), "tag 2 at byte %d has no fixed length"),
        (bytes([0x80 | 13 << 2 | 3, 65]), "tag 13 at byte %d has no fixed length"),
        (bytes([0xC0 | 13, 2, 65]), "tag 13 at byte %d is truncated"),
        (bytes([0xC0 | 13, 255, 0, 0]), "tag 13 at byte %d is truncated"),
        (bytes([0x80 | 13 << 2 | 2, 0, 0]), "tag 13 at byte %d is truncated"),
        (bytes([0xC0 | 13]), "tag 13 at byte %d is truncated"),
        (b"\n", "it is not OpenPGP data at byte %d"),
    ],
)
def test_a_packet_without_its_length_is_refused(behind, problem):
    with pytest.raises(openpgp.KeyFormatError, match=problem % len(PACKET)):
        openpgp.fingerprints(PACKET + behind)


@pytest.mark.parametrize("length", [bytes([193, 8]), bytes([255, 0, 0, 1, 200])])
def test_longer_packets_are_read_completely(length):
    name = b"n" * 456
    assert openpgp.fingerprints(PACKET + bytes([0xC0 | 13]) + length + name + PACKET) == (FINGERPRINT, FINGERPRINT)
    old = bytes([0x80 | 13 << 2 | 1]) + len(name).to_bytes(2, "big")
    assert openpgp.fingerprints(PACKET + old + name + PACKET) == (FINGERPRINT, FINGERPRINT)


@pytest.mark.skipif(not shutil.which("gpg"), reason="no gpg on this machine")
def test_exports_of_gpg():
    # gpg's agent has a socket in its home directory, so the path must be short.
    home = Path(tempfile.mkdtemp(prefix="openpgp-"))

    def gpg(*arguments, text=None):
        command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", *arguments]
        return subprocess.run(command, input=text, capture_output=True, check=True).stdout

    try:
        launch = ["gpgconf", "--homedir", str(home), "--launch", "gpg-agent"]
        wait_until(lambda: subprocess.run(launch, check=False).returncode == 0, "gpg's agent")
        gpg("--quick-generate-key", "Repository <r@example.org>", "ed25519", "cert", "never")
        listing = gpg("--with-colons", "--list-keys").decode()
        fingerprint = listing.split("\nfpr:")[1].split(":")[8]
        gpg("--quick-add-key", fingerprint, "ed25519", "sign", "never")
        for form in ([], ["--armor"]):
            public = gpg(*form, "--export")
            assert openpgp.fingerprints(public) == (fingerprint,)
            assert openpgp.binary(public) == gpg("--export")
        with pytest.raises(openpgp.KeyFormatError, match=r"tag 5 at byte 0 .*a secret key"):
            openpgp.fingerprints(gpg("--export-secret-keys"))
        # The package manager would accept signatures of a second key after the trusted key too.
        public = gpg("--export")
        with pytest.raises(openpgp.KeyFormatError, match="tag 5 at byte %d " % len(public)):
            openpgp.fingerprints(public + gpg("--export-secret-keys"))
        signed = gpg("--sign", text=b"a message")
        with pytest.raises(
            openpgp.KeyFormatError, match=r"tag \d+ at byte %d is not part of a public key" % len(public)
        ):
            openpgp.fingerprints(public + signed)
        # A file with signatures but without a key must be refused.
        with pytest.raises(openpgp.KeyFormatError, match="tag 2 at byte 0 belongs to no key"):
            openpgp.fingerprints(gpg("--detach-sign", text=b"a message"))
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)


RINGS = sorted(Path("/usr/share/keyrings").glob("debian-archive-*.gpg"))


@pytest.mark.skipif(not RINGS or not shutil.which("gpg"), reason="no Debian keys, or no gpg, on this machine")
def test_real_key_rings_are_read_like_gpg():
    for ring in RINGS:
        told = subprocess.run(
            ["gpg", "--show-keys", "--with-colons", str(ring)], capture_output=True, text=True, check=True
        )
        # gpg prints one part for each key. The part starts with the fingerprint of the primary key.
        parts = ("\n" + told.stdout).split("\npub:")[1:]
        primary = [part.split("\nfpr:")[1].split(":")[8] for part in parts]
        assert sorted(openpgp.fingerprints(ring.read_bytes())) == sorted(primary)
