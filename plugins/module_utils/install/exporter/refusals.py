# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse settings that this host does not support, before any change."""

from __future__ import annotations

import ipaddress
import os
import re
import socket

from ...processes.command import program
from ..files import Installation
from .host import CONFIG, PROGRAM, output, refuse

# Podman 4.4 is the first release with quadlets: https://github.com/containers/podman/releases/tag/v4.4.0
QUADLETS_SINCE = (4, 4)
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def refuse_paths(target: Installation, paths: list[str]) -> None:
    """Refuse files of the site in the role's folders.

    The role deletes unknown files in its folders.
    """
    for path in paths:
        file = str(target.path(path.lstrip("/")))
        for folder in (CONFIG, PROGRAM):
            own = str(target.path(folder))
            # Compare each path twice: as given, and with links resolved.
            if below(os.path.normpath(file), own) or below(os.path.realpath(file), os.path.realpath(own)):
                refuse(
                    "%s is below %s, where the role deletes files that it did not write. Move it, for example a certificate "
                    "and its key to /etc/ssl." % (path, own)
                )


def below(path: str, folder: str) -> bool:
    return (path + "/").startswith(folder + "/")


def refuse_address(address: str) -> None:
    """Refuse a name that resolves to the loopback address on this host."""
    if address in LOOPBACK_NAMES or address.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(address)
        return
    except ValueError:
        pass
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except OSError:
        # The exporter itself reports this error. While a host boots, the name may not resolve yet.
        return
    loopback = sorted(each for each in addresses if ipaddress.ip_address(each.partition("%")[0]).is_loopback)
    if loopback:
        refuse(
            "dcgm_exporter_listen_address: %s is %s on this host, so no other host can scrape it. Check /etc/hosts, where "
            "Debian's installer writes 127.0.1.1: put the host's own address there, or set dcgm_exporter_listen_address to "
            "that address. If only the host itself scrapes, set 127.0.0.1." % (address, ", ".join(loopback))
        )


def refuse_quadlet(check: bool) -> None:
    """Refuse a Podman that does not support quadlets."""
    if not program("podman"):
        if check:
            # In check mode, an earlier task of the play may have only predicted the installation of Podman.
            return
        refuse("dcgm_exporter_source: podman: Podman is not installed on this host.")
    text = output(["podman", "--version"])[1].strip()
    version = re.search(r"(\d+)\.(\d+)", text)
    if version and tuple(map(int, version.groups())) < QUADLETS_SINCE:
        refuse(
            "dcgm_exporter_source: podman: this host has %s, and quadlets need Podman 4.4. Install a newer one, or use another "
            "dcgm_exporter_source." % text
        )
