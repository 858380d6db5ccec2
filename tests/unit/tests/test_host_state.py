# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fail while waiting for a lab host with failed units or no inotify instances.

A low limit for root's inotify instances is raised.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.lab import verify_monitoring
from tests.lab.host_state import HostError, describe_failures, wait_until_started

INOTIFY = Path(__file__).parents[2] / "lab" / "inotify"
#: systemd 252 and Prometheus 2.42 print this on a host where root has no inotify instances left.
NO_INSTANCE = "systemd-ask-password-wall.path: Failed to create inotify object: Too many open files"
NO_WATCHER = (
    'level=error component="discovery manager scrape" msg="Error adding file watcher" err="too many open files"'
)


def host(states, failed="", journal=""):
    """Return a function that answers like a host which has these states in turn."""
    states = list(states)

    def run(command):
        if "is-system-running" in command:
            return 0, states.pop(0) if len(states) > 1 else states[0]
        if "--failed" in command:
            return 0, f"{failed} loaded failed failed Something\n" if failed else ""
        if "grep" in command:
            return subprocess.run(["grep", "-i", *shlex.split(command.partition("grep -i")[2])], input=journal,
                                  stdout=subprocess.PIPE, text=True, check=False).returncode, journal  # fmt: skip
        return 0, journal if "journalctl" in command else ""

    return run


def test_the_wait_ends_when_the_host_runs():
    wait_until_started(host(["", "initializing", "starting", "running"]))


@pytest.mark.parametrize("state", ["starting", "degraded", "maintenance"])
def test_the_wait_ends_at_once_with_the_failed_unit_and_its_journal(state):
    with pytest.raises(HostError) as caught:
        wait_until_started(host([state], "systemd-ask-password-wall.path", NO_INSTANCE), seconds=3600)
    assert str(caught.value).startswith("unit systemd-ask-password-wall.path has failed: " + NO_INSTANCE)
    assert "fs.inotify.max_user_instances" in str(caught.value)


def test_unresponsive_host_times_out():
    with pytest.raises(HostError, match=r"did not start within 0\.1 s: its state is unknown"):
        wait_until_started(lambda command: (125, ""), seconds=0.1)


def test_prometheus_without_an_inotify_instance_fails_at_once():
    reason = describe_failures(host(["running"], journal=NO_WATCHER))
    assert NO_WATCHER in reason and "fs.inotify.max_user_instances" in reason
    assert describe_failures(host(["running"], journal="level=info msg=ready")) == ""


def test_a_host_without_inotify_instances_has_not_started():
    with pytest.raises(HostError, match=r"Too many open files\nAll lab hosts share fs.inotify.max_user_instances"):
        wait_until_started(host(["running"], journal=NO_INSTANCE))


def test_the_check_of_the_monitoring_host_ends_at_once_with_the_reason(monkeypatch, capsys):
    def run(command):
        return (1, "URLError: refused") if "api/v1" in command else host(["running"], journal=NO_WATCHER)(command)

    monkeypatch.setattr(verify_monitoring, "podman_run", lambda _name: run)
    # No run of the tests takes so long.
    monkeypatch.setattr(verify_monitoring, "PATIENCE_SECONDS", 36000)
    assert verify_monitoring.main() == 1
    assert "too many open files" in capsys.readouterr().out


def inotify(action, limit_file):
    done = subprocess.run([str(INOTIFY), action, str(limit_file)], capture_output=True, text=True, check=True)
    return done.stdout


def test_only_low_limits_are_raised_with_a_message(tmp_path):
    limit = tmp_path / "limit"
    limit.write_text("128\n")
    assert "raised fs.inotify.max_user_instances from 128 to 1024" in inotify("raise", limit)
    assert limit.read_text() == "1024\n"
    assert inotify("raise", limit) == ""
    limit.write_text("8192\n")
    assert inotify("raise", limit) == "" and limit.read_text() == "8192\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file read-only")
def test_unraisable_limit_is_no_error(tmp_path):
    limit = tmp_path / "limit"
    limit.write_text("128\n")
    # In some containers, /proc/sys is mounted read-only.
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && "$2" raise "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(limit), str(INOTIFY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, limit.read_text()) == (0, "128\n"), done.stderr
    assert "does not let it be raised" in done.stdout


def test_limit_depends_on_the_number_of_hosts(tmp_path):
    limit = tmp_path / "limit"
    limit.write_text("1000000\n")
    room = int(inotify("room", limit))
    assert 100_000 < room <= 125_000
    limit.write_text("1\n")
    assert inotify("room", limit) == "0\n"
    assert int(inotify("room", tmp_path / "none")) > 100
