# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains that do not come to their end: left alone, restarted; and own commands that fail. By the module."""

from __future__ import annotations

from drained_host import RUNNING

ALL = set(RUNNING)
OFF = {"slurm": True, "services": ["lab-a", "lab-slow", "lab-b"]}
DRAINED = ALL - {"lab-a.service", "lab-slow.service", "lab-b.service", "lab-exporter.service"}


def test_another_drain_goes_on_where_one_was_cut_off(host):
    job = host.submit(600)
    assert not host.drain(**OFF)["drained"]
    assert host.active() == ALL
    host.ask(f"scancel {job}")
    host.wait_until(f'[ -z "$(squeue --noheader --job {job} 2>/dev/null)" ]')
    assert host.drain(**OFF)["drained"]
    assert host.active() == DRAINED
    assert host.resume()["changed"]
    assert host.is_whole()


def test_after_a_restart_of_the_host_the_rest_is_brought_back(host):
    assert host.drain(commands_after=["touch /run/lab-after"], **OFF)["changed"]
    host.ask("systemctl disable --quiet lab-b")
    host.reboot()
    try:
        host.wait_until("scontrol ping >/dev/null && scontrol show slurmd >/dev/null")
        # What is enabled came with the restart; what is not, and the node, did not.
        assert host.active() == ALL - {"lab-b.service"} or host.active() == ALL
        assert host.node().startswith("drained") or host.node().startswith("down")
        assert host.resume()["changed"]
        assert host.is_whole()
        assert host.host.file("/run/lab-after").exists
    finally:
        host.ask("systemctl enable --quiet lab-b")


def test_a_drain_after_a_restart_takes_what_came_up_again(host):
    assert host.drain(**OFF)["changed"]
    host.reboot()
    host.wait_until("scontrol ping >/dev/null && scontrol show slurmd >/dev/null")
    assert host.drain(**OFF)["changed"]
    assert host.active() == DRAINED
    assert host.resume()["changed"]
    assert host.is_whole()


def test_a_command_that_fails_stops_the_drain_before_anything_goes(host):
    commands = {"commands_before": ["echo no >&2; exit 3"], "commands_after": ["touch /run/lab-after"]}
    assert "it exited with status 3: no" in host.refused("drained", **commands, **OFF)
    assert host.host.file("/run/lab-after").exists
    assert host.is_whole()
