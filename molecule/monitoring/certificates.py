#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes an authority and certificates that it signs, for a lab that lives some minutes.

usage: certificates.py DIRECTORY NAME=ADDRESS...     ca.crt, and NAME.crt with NAME.key for each
"""

from __future__ import annotations

import datetime
import ipaddress
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


def begun(name: str, key, issuer: str) -> x509.CertificateBuilder:
    def common_name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(common_name(name))
        .issuer_name(common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
    )


def write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def main(directory: Path, hosts: list[list[str]]) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    name = "authority of the lab"
    certificate = begun(name, authority, name).sign(authority, hashes.SHA256())
    write(directory / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    for host, address in hosts:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(ipaddress.ip_address(address))])
        signed = begun(host, key, name).add_extension(names, critical=False).sign(authority, hashes.SHA256())
        write(directory / f"{host}.crt", signed.public_bytes(serialization.Encoding.PEM))
        pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        write(directory / f"{host}.key", key.private_bytes(*pem))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [argument.split("=") for argument in sys.argv[2:]])
