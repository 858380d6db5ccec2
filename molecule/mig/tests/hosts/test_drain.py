# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop a blocking service for a change, and restart it even if the run fails."""

from __future__ import annotations

import shlex

import pytest
from gpu_hosts import HALF_WAY

UNIT, PROGRAM = "openfleet-inference.service", "/usr/local/bin/openfleet-inference"
#: A program that works in the first MIG device of GPU 7 at its start.
SCRIPT = r"""#!/bin/sh
device=$(nvidia-smi -L | sed -n '/^GPU 7/,$ s/.*(UUID: \(MIG-[^)]*\)).*/\1/p' | head -n 1)
echo "$device" > /run/openfleet-inference
exec gpusim run --gpu "$device" --memory 1GiB -- sleep 600
"""
SERVICE = f"[Service]\nExecStart={PROGRAM}\n[Install]\nWantedBy=multi-user.target\n"

WHOLE = [{"gpus": [7], "sharing": "mig", "mig": [{"profile": "7g.80gb"}]}]
DRAIN = {"gpu_layout_on_busy": "drain", "gpu_drain_services": [UNIT], "gpu_drain_poll": 1}


@pytest.fixture
def served(hopper):
    """Return the host with the running service."""
    hopper.ask(f"printf %s {shlex.quote(SCRIPT)} > {PROGRAM} && chmod 755 {PROGRAM}")
    hopper.ask(f"printf %s {shlex.quote(SERVICE)} > /etc/systemd/system/{UNIT}")
    hopper.ask(f"systemctl daemon-reload && systemctl enable --quiet --now {UNIT}")
    assert at_work(hopper)
    yield hopper
    hopper.host.run(f"systemctl disable --quiet --now {UNIT}; rm -f {PROGRAM} /etc/systemd/system/{UNIT}")
    hopper.host.run("systemctl daemon-reload; rm -f /run/openfleet-inference")


def active(host) -> bool:
    return host.host.run(f"systemctl is-active --quiet {UNIT}").rc == 0


def at_work(host) -> bool:
    """Wait until the service works. Return whether nvidia-smi lists its device."""
    host.wait_until(f'[ "$(cat /proc/$(systemctl show --property=MainPID --value {UNIT})/comm)" = sleep ]')
    device = host.ask("cat /run/openfleet-inference")
    return device in host.gpus()[7].mig_device_uuids


def test_service_stops_for_the_change_and_runs_in_the_new_layout(site, served):
    site("hopper", gpu_layout=WHOLE, **DRAIN).succeeded()
    assert [i.profile for i in served.gpus()[7].instances.values()] == ["7g.80gb"]
    assert active(served) and at_work(served)


# tests/integration/modules/test_site_on_busy.py also tests a failed change, with commands in place of a service.
# molecule/gpu_drain also tests it, with services and another change.
@pytest.mark.thorough
def test_service_runs_in_the_old_layout_after_a_failed_change(site, served):
    served.fail_at(HALF_WAY[0], 1)
    said = site("hopper", gpu_layout=WHOLE, **DRAIN).failed("hopper")
    assert "the previous layout was restored" in said
    assert served.not_as("first") == []
    assert active(served) and at_work(served)


# molecule/gpu_drain also tests the run after an interruption.
@pytest.mark.thorough
def test_next_run_restarts_service_after_interruption(site, served):
    served.stop_at(HALF_WAY[0], 1)
    run = site("hopper", gpu_layout=WHOLE, **DRAIN)
    pid = served.until_stopped(run)
    run.kill()
    served.end("KILL", pid)
    served.until_unlocked()
    # As a control, check that nothing else restarted the service.
    assert served.cut_off and not active(served)
    site("hopper", **DRAIN).succeeded()
    assert served.not_as("first") == [] and not served.cut_off
    assert active(served) and at_work(served)
