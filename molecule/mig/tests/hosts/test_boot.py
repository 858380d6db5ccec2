# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a restart restores the layout before any GPU client starts."""

from __future__ import annotations

import shlex

import pytest

from tests.lab.lab_fixtures import BOOT_UNIT as UNIT
from tests.lab.lab_fixtures import reboot
from tests.thorough import THOROUGH

#: A service that uses GPUs. The boot unit names the service in Before=. Like the units of real GPU clients, the
#: service's unit names no other unit.
CLIENT = "ollama"
LOOK = "nvidia-smi -L; nvidia-smi --query-gpu=compute_mode --format=csv,noheader"
CLIENT_UNIT = f"""[Unit]
Description=Notes which GPUs are there when it starts
[Service]
Type=oneshot
ExecStart=/bin/sh -c '({LOOK}) > /var/lib/{CLIENT}'
[Install]
WantedBy=multi-user.target
"""


def seen(listing: str) -> list[str]:
    """Return names and modes from nvidia-smi.

    The result has no UUIDs, because new instances have new UUIDs.
    """
    return [line.split("(UUID: MIG-")[0] for line in listing.splitlines()]


@pytest.fixture(params=["hopper", "ampere", "ada"])
def host(request, gpu_host):
    """Return a host with its layout and a client that starts at boot."""
    host = gpu_host(request.param)
    host.ask(f"printf '%s' {shlex.quote(CLIENT_UNIT)} > /etc/systemd/system/{CLIENT}.service")
    host.ask(f"systemctl enable --quiet {CLIENT}")
    yield host
    host.host.run(f"systemctl disable --quiet {CLIENT}; rm -f /etc/systemd/system/{CLIENT}.service /var/lib/{CLIENT}")
    host.host.run(f"systemctl daemon-reload; systemctl enable --quiet {UNIT}; systemctl start {UNIT}")


def test_only_listed_clients_wait_for_the_layout(host):
    """Let only the clients that the boot unit names wait for the layout.

    A driver that hangs must not block logins.
    """
    for unit in ("sysinit.target", "basic.target", "ssh.service", "dbus.service", "systemd-logind.service"):
        assert UNIT not in host.ask(f"systemctl list-dependencies --after --plain --all {unit}"), unit
    assert UNIT in host.ask(f"systemctl list-dependencies --after --plain --all {CLIENT}.service")


def test_boot_unit_restores_the_layout_before_clients_start(host):
    before = seen(host.ask(LOOK))
    reboot(host.host)
    assert host.ask(f"systemctl is-active {UNIT}") == "active"
    assert seen(host.ask(f"cat /var/lib/{CLIENT}")) == before
    assert host.not_as("first") == []
    assert host.ask("systemctl list-units --failed --plain --no-legend") == ""
    assert "ordering cycle" not in host.ask("journalctl --boot --no-pager")
    # tests/lab/test_clients.py tests which state each model loses at a restart. One model is sufficient for the
    # control.
    if host.name != "hopper" and not THOROUGH:
        return
    # As a control, a restart without the boot unit loses the layout.
    host.ask(f"systemctl disable --quiet {UNIT}")
    reboot(host.host)
    assert seen(host.ask(f"cat /var/lib/{CLIENT}")) != before
    assert host.not_as("first") != []
    host.ask(f"systemctl start {UNIT}")
    assert host.not_as("first") == []
