# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test interrupted drains, and failures of commands that the inventory defines.

The tests use the module.
"""

from __future__ import annotations

from drained_host import RUNNING

ALL = set(RUNNING)
OFF = {"slurm": True, "services": ["lab-a", "lab-slow", "lab-b"]}
DRAINED = ALL - {"lab-a.service", "lab-slow.service", "lab-b.service", "lab-exporter.service"}


def test_second_drain_completes_an_interrupted_one(host):
    job = host.submit(600)
    assert not host.drain(**OFF)["drained"]
    assert host.active() == ALL
    host.ask(f"scancel {job}")
    host.wait_until(f'[ -z "$(squeue --noheader --job {job} 2>/dev/null)" ]')
    assert host.drain(**OFF)["drained"]
    assert host.active() == DRAINED
    assert host.resume()["changed"]
    assert host.is_whole()


def test_rest_is_restored_after_a_host_restart(host):
    assert host.drain(commands_after=["touch /run/lab-after"], **OFF)["changed"]
    host.ask("systemctl disable --quiet lab-b")
    host.reboot()
    try:
        host.wait_until("scontrol ping >/dev/null && scontrol show slurmd >/dev/null")
        # The enabled units started again with the host. The unit that is not enabled and the Slurm node still wait for
        # a resume.
        assert host.active() == ALL - {"lab-b.service"} or host.active() == ALL
        assert host.node().startswith("drained") or host.node().startswith("down")
        assert host.resume()["changed"]
        assert host.is_whole()
        assert host.host.file("/run/lab-after").exists
    finally:
        host.ask("systemctl enable --quiet lab-b")


def test_drain_after_restart_stops_restarted_services(host):
    assert host.drain(**OFF)["changed"]
    host.reboot()
    host.wait_until("scontrol ping >/dev/null && scontrol show slurmd >/dev/null")
    assert host.drain(**OFF)["changed"]
    assert host.active() == DRAINED
    assert host.resume()["changed"]
    assert host.is_whole()


def test_failing_command_ends_the_drain_before_any_change(host):
    commands = {"commands_before": ["echo no >&2; exit 3"], "commands_after": ["touch /run/lab-after"]}
    assert "it exited with status 3: no" in host.refused("drained", **commands, **OFF)
    assert host.host.file("/run/lab-after").exists
    assert host.is_whole()
