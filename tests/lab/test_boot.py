# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a restart of a host its layout is back before any client of the GPUs starts. Needs hosts that site.yml was run on."""

from __future__ import annotations

import shlex
import time

import pytest
from nvidia_smi import read_gpus
from verify_layout import differences

UNIT = "gpu-layout.service"
CLIENT = "openfleet-client"
MODES = "nvidia-smi --query-gpu=compute_mode --format=csv,noheader"
#: An ordinary service: it names no other unit, as the clients of real hosts do not name this collection's.
CLIENT_UNIT = f"""[Unit]
Description=Notes which GPUs are there when it starts
[Service]
Type=oneshot
ExecStart=/bin/sh -c '(nvidia-smi -L; {MODES}) > /var/lib/{CLIENT}'
[Install]
WantedBy=multi-user.target
"""


def reboot(host) -> None:
    """Restarts the host and waits until everything on it has started."""
    started = host.check_output("stat -c %Y /proc/1")
    time.sleep(1)  # the start of PID 1 is told in whole seconds
    host.run("systemctl reboot")
    deadline = time.monotonic() + 60
    while host.run("stat -c %Y /proc/1").stdout.strip() in ("", started) or host.run(
        "systemctl is-system-running"
    ).stdout.strip() not in ("running", "degraded"):
        assert time.monotonic() < deadline, "the host did not come back within 60 s"
        time.sleep(0.2)


def what_the_client_saw(host) -> tuple:
    """(MIG devices, compute modes) when the client started."""
    lines = host.check_output(f"cat /var/lib/{CLIENT}").splitlines()
    return (
        sum("MIG" in line for line in lines),
        [line for line in lines if not line.lstrip().startswith(("GPU", "MIG"))],
    )


def seen(host) -> tuple:
    """The same, asked now."""
    listed = host.check_output("nvidia-smi -L").splitlines()
    modes = host.check_output(MODES).splitlines()
    return sum("MIG" in line for line in listed), modes


@pytest.fixture(params=["h100", "a100", "l40s"])
def client_host(request, lab_host):
    """(name, host) of a host with its layout, and with a client that starts at boot."""
    host = lab_host(request.param)
    if not host.file(f"/etc/systemd/system/{UNIT}").exists:
        pytest.fail(f"lab host {request.param} has no {UNIT}: run site.yml on it")
    host.check_output(f"printf '%s' {shlex.quote(CLIENT_UNIT)} > /etc/systemd/system/{CLIENT}.service")
    host.check_output(f"systemctl enable --quiet {CLIENT}")
    yield request.param, host
    host.run(f"systemctl disable --quiet {CLIENT}; rm -f /etc/systemd/system/{CLIENT}.service /var/lib/{CLIENT}")
    host.run(f"systemctl daemon-reload; systemctl enable --quiet {UNIT}; systemctl start {UNIT}")


def not_as_asked(host, variables) -> list:
    def run(command: str) -> tuple:
        done = host.run(command)
        return done.rc, done.stdout + done.stderr

    return differences(variables, read_gpus(run))


def test_the_layout_is_back_before_a_client_starts(client_host, host_vars):
    name, host = client_host
    before = seen(host)
    assert not_as_asked(host, host_vars(name)) == []
    reboot(host)
    assert host.check_output(f"systemctl is-active {UNIT}") == "active"
    assert what_the_client_saw(host) == before
    assert not_as_asked(host, host_vars(name)) == []
    assert host.check_output("systemctl list-units --failed --plain --no-legend") == ""
    assert "ordering cycle" not in host.run("journalctl --boot --no-pager").stdout


def test_without_the_unit_it_is_not(client_host, host_vars):
    """The control: the restart does lose the layout, so that the test above can fail."""
    name, host = client_host
    before = seen(host)
    host.check_output(f"systemctl disable --quiet {UNIT}")
    reboot(host)
    assert what_the_client_saw(host) != before
    assert not_as_asked(host, host_vars(name)) != []
    host.check_output(f"systemctl start {UNIT}")
    assert not_as_asked(host, host_vars(name)) == []
