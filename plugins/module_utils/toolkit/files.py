# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the text of the files that the role container_toolkit manages. Pure."""

from __future__ import annotations

from typing import Mapping

from .rules import OWNER

SOURCES, KEYRINGS = OWNER.sources, OWNER.keyrings

#: The role's units have the same names as the toolkit's own units, so that follow.py can restart the service by this
#: name after MIG devices changed.
REFRESH_SERVICE = "/etc/systemd/system/nvidia-cdi-refresh.service"
REFRESH_PATH = "/etc/systemd/system/nvidia-cdi-refresh.path"
SETTINGS = "/etc/systemd/system/nvidia-cdi-refresh.service.d/openfleet.conf"
UNITS = (REFRESH_SERVICE, REFRESH_PATH, SETTINGS)
#: An administrator's settings for the toolkit's service, which override SETTINGS.
ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
SPECIFICATION = "/var/run/cdi/nvidia.yaml"

HEAD = OWNER.head

#: Folder in NVIDIA's repository, by package manager. One repository serves all distributions with this package manager
#: (https://nvidia.github.io/libnvidia-container/stable/deb/nvidia-container-toolkit.list, and rpm/….repo).
FAMILIES = {"apt": "deb", "dnf": "rpm"}
ARCHITECTURES = {
    "apt": {"x86_64": "amd64", "aarch64": "arm64"},
    "dnf": {"x86_64": "x86_64", "aarch64": "aarch64"},
}


def repository_url(url: str, manager: str, machine: str) -> str:
    architecture = ARCHITECTURES[manager].get(machine, machine)
    return url.format(family=FAMILIES[manager], architecture=architecture).rstrip("/")


def refresh_service() -> str:
    """Return the service for a toolkit that has none.

    Does nothing without a driver for the running kernel. The specification is written to another file and then renamed,
    so that an engine reads either the old or the new one.
    """
    return (
        HEAD
        + """[Unit]
Description=Renew the CDI specification of NVIDIA devices
ConditionPathExists=/usr/bin/nvidia-ctk
After=multi-user.target

[Service]
Type=oneshot
ExecCondition=/bin/grep -qE '/(nvidia|nvidia-current)\\\\.ko' /lib/modules/%v/modules.dep
ExecStart=/bin/mkdir -p /var/run/cdi
ExecStart=/bin/sh -c 'nvidia-ctk cdi generate --format=yaml --output= >/var/run/cdi/nvidia.new'
ExecStart=/bin/chmod 0644 /var/run/cdi/nvidia.new
ExecStart=/bin/mv -f /var/run/cdi/nvidia.new /var/run/cdi/nvidia.yaml

# As root, because only root sees all devices of a GPU in MIG mode. The driver's first client may load it and create its nodes,
# with SYS_MODULE, MKNOD, CHOWN and FOWNER. Some numbers are only assigned then, so all devices must be allowed.
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_MODULE CAP_MKNOD CAP_CHOWN CAP_FOWNER CAP_DAC_OVERRIDE
NoNewPrivileges=yes
ProtectSystem=strict
RuntimeDirectory=cdi
RuntimeDirectoryPreserve=yes
ProtectHome=yes
PrivateTmp=yes
PrivateMounts=yes
PrivateNetwork=yes
IPAddressDeny=any
RestrictAddressFamilies=AF_UNIX AF_NETLINK
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service @module
SystemCallFilter=~@resources
SystemCallErrorNumber=EPERM
UMask=0022

[Install]
WantedBy=multi-user.target
"""
    )


def refresh_path() -> str:
    """Return the path unit.

    It watches the kernel's index of modules, which changes with the running kernel's driver.
    """
    return (
        HEAD
        + """[Unit]
Description=Renew the CDI specification when the NVIDIA driver changes

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/lib/modules/%v/modules.dep.bin

[Install]
WantedBy=multi-user.target
"""
    )


def settings(environment: Mapping[str, str]) -> str:
    """Return the drop-in for the service, from whichever package.

    The toolkit's own file does not change. The toolkit's service stays active when it is done, so that its path unit
    would start it only once.
    """
    lines = ['Environment="%s=%s"\n' % (name, _quoted(environment[name])) for name in sorted(environment)]
    return HEAD + "[Service]\nRemainAfterExit=no\n" + "".join(lines)


def _quoted(value: str) -> str:
    """Return the value with quotes as in systemd.exec(5)."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def wanted(
    manager: str, source: str, url: str, cdi: bool, own_units: bool, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return every desired file (text by path)."""
    found = {}
    if source == "repository":
        found[SOURCES[manager]] = OWNER.repository(manager, url)
    if cdi and own_units:
        found[REFRESH_SERVICE], found[REFRESH_PATH] = refresh_service(), refresh_path()
    if cdi:
        found[SETTINGS] = settings(environment)
    return found
