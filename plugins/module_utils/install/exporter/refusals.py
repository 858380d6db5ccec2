# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host cannot be asked for. Each ends the run before anything is changed."""

from __future__ import annotations

import ipaddress
import os
import re
import socket

from ...command import program
from ..files import Installation
from .host import CONFIG, PROGRAM, output, refuse

#: Podman 4.4 is the first with quadlets: https://github.com/containers/podman/releases/tag/v4.4.0
QUADLETS_SINCE = (4, 4)
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def refuse_paths(target: Installation, paths: list[str]) -> None:
    """A site's own files in the role's directories, where the role deletes what is not its own."""
    for path in paths:
        there = str(target.path(path.lstrip("/")))
        for folder in (CONFIG, PROGRAM):
            own = str(target.path(folder))
            # By its name, and by where links lead.
            if below(os.path.normpath(there), own) or below(os.path.realpath(there), os.path.realpath(own)):
                refuse(
                    "%s is below %s, which is the role's own: it deletes there what it did not write. Have it elsewhere, a "
                    "certificate and its key in /etc/ssl for example." % (path, own)
                )


def below(path: str, folder: str) -> bool:
    return (path + "/").startswith(folder + "/")


def refuse_address(address: str) -> None:
    """A name that was meant for others to reach, and is loopback here."""
    if address in LOOPBACK_NAMES or address.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(address)
        return
    except ValueError:
        pass
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except OSError:
        # The exporter will say so, and a host that is just coming up may know it later.
        return
    loopback = sorted(found_one for found_one in found if ipaddress.ip_address(found_one.partition("%")[0]).is_loopback)
    if loopback:
        refuse(
            "dcgm_exporter_listen_address: %s is %s on this host, where no other host can scrape it. A line of /etc/hosts may "
            "say so, as Debian's installer writes one with 127.0.1.1: put the host's own address there, or set "
            "dcgm_exporter_listen_address to that address. Where only the host itself is to scrape, ask for 127.0.0.1."
            % (address, ", ".join(loopback))
        )


def refuse_quadlet(check: bool) -> None:
    """By a Podman that would make no unit of it."""
    if not program("podman"):
        if check:
            # What comes before in the same play may bring it.
            return
        refuse("dcgm_exporter_source: podman: Podman is not installed on this host.")
    said = output(["podman", "--version"])[1].strip()
    version = re.search(r"(\d+)\.(\d+)", said)
    if version and tuple(map(int, version.groups())) < QUADLETS_SINCE:
        refuse(
            "dcgm_exporter_source: podman: this host has %s, and quadlets need Podman 4.4. Bring a newer one, or use another "
            "dcgm_exporter_source." % said
        )
