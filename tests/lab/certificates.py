#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create a certificate authority and certificates for a short-lived lab.

usage: certificates.py DIRECTORY NAME=ADDRESS...     writes ca.crt, and NAME.crt and NAME.key for each name
"""

from __future__ import annotations

import datetime
import ipaddress
import sys
from pathlib import Path
from typing import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority.

    It writes ca.crt and all certificates that it signs to one folder.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("authority of the lab")
        signed = self._begun(self._name, self._key, authority=True).sign(self._key, hashes.SHA256())
        self.certificate = directory / "ca.crt"
        _write(self.certificate, signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, names: Sequence[str] = (), organizations: Sequence[str] = ()) -> Path:
        """Write NAME.crt and NAME.key, and return the certificate's path.

        `names` are host names and addresses of a server. `organizations` are the organizations of a client. Kubernetes
        uses them as groups.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        begun = self._begun(_subject(name, organizations), key)
        if names:
            begun = begun.add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
        path = self.directory / ("%s.crt" % name.replace(":", "-"))
        _write(path, begun.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write(path.with_suffix(".key"), key.private_bytes(*pem))
        return path

    def _begun(self, subject: x509.Name, key, authority: bool = False) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )


def _subject(name: str, organizations: Sequence[str] = ()) -> x509.Name:
    groups = [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*groups, x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def main(directory: Path, hosts: list[list[str]]) -> None:
    authority = Authority(directory)
    for host, address in hosts:
        authority.issue(host, [host, address])


if __name__ == "__main__":
    main(Path(sys.argv[1]), [argument.split("=") for argument in sys.argv[2:]])
