# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine the package manager of a host."""

from __future__ import annotations

from ..processes.command import program
from .host_files import read_text

_FAMILIES = {"debian": "apt", "ubuntu": "apt", "rhel": "dnf", "fedora": "dnf", "centos": "dnf"}
_PROGRAMS = (("apt-get", "apt"), ("dnf", "dnf"))


def package_manager(release: str = "/etc/os-release") -> str:
    """Return "apt", "dnf", or "" if the host has neither.

    The distribution decides. For an unknown distribution, the installed programs decide. They may be misleading,
    because EPEL has apt and Debian has dnf.
    """
    fields = dict(line.split("=", 1) for line in (read_text(release) or "").splitlines() if "=" in line)
    names = " ".join(fields.get(name, "").strip("\"' ") for name in ("ID", "ID_LIKE")).split()
    known = [_FAMILIES[name] for name in names if name in _FAMILIES]
    return (known or [manager for name, manager in _PROGRAMS if program(name)] or [""])[0]
