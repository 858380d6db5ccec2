# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test Debian's real MPS control daemon with real systemd.

The tests cover start, limits, kill, upgrade and removal.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from mps_daemons import DEVICES, LOGS, MIB, NAME, PIPES, UNIT, WAIT_SECONDS

LIMIT = 2048 * MIB
MOUNT = r"run-openfleet\x2dmps-inference.mount"


def test_a_daemon_serves_its_devices_with_its_limits(mps):
    mps.do("start", percentage=25, limit=LIMIT)
    assert mps.limits() == ("25.0", "2G", "2G")
    environment = mps.ask(f"tr '\\0' '\\n' </proc/{mps.pid()}/environ").split("\n")
    assert f"CUDA_VISIBLE_DEVICES={DEVICES[0]},{DEVICES[1]}" in environment
    assert f"CUDA_MPS_PIPE_DIRECTORY={PIPES}" in environment
    assert f"CUDA_MPS_LOG_DIRECTORY={LOGS}" in environment
    seen = mps.seen()
    assert (seen["running"], seen["pid"], seen["problem"], seen["outdated"]) == (True, mps.pid(), None, [])
    assert (seen["active_thread_percentage"], seen["pinned_memory_limits_bytes"]) == (25, [LIMIT, LIMIT])
    assert (seen["devices"], seen["server_pids"], seen["clients"]) == (DEVICES, [], [])
    assert seen["daemon"]["places"] == [{"gpu_uuid": d, "profile": None, "start": None} for d in DEVICES]


def test_several_daemons_are_independent(mps):
    mps.do("start", "one", DEVICES[:1], 30, 1024 * MIB)
    mps.do("start", "two", DEVICES[1:], 70)
    one, two = mps.do("observe")
    assert (one["active_thread_percentage"], one["pinned_memory_limits_bytes"]) == (30, [1024 * MIB])
    assert (two["active_thread_percentage"], two["pinned_memory_limits_bytes"]) == (70, [None])
    mps.do("stop", "one")
    one, two = mps.do("observe")
    assert not one["running"] and "openfleet-mps@one.service is inactive" in one["problem"]
    assert two["running"] and two["problem"] is None


@pytest.mark.parametrize(("limit", "said"), [(700 * MIB, "700M"), (1500 * MIB, "1G")])
def test_partly_reported_limit_counts_as_the_requested_one(mps, limit, said):
    mps.do("start", limit=limit)
    assert mps.limits()[1:] == (said, said)
    assert mps.seen()["pinned_memory_limits_bytes"] == [limit, limit]


def test_dead_servers_are_counted_while_the_daemon_answers(mps):
    """Count dead servers.

    If there is no driver, every server of the real daemon dies.
    """
    mps.do("start")
    mps.ask("mkdir -p /run/openfleet-gpu-metrics")
    start = f"echo start_server -uid 65534 | CUDA_MPS_PIPE_DIRECTORY={PIPES} nvidia-cuda-mps-control"

    def deaths(expected):
        """Wait until the count of dead servers has this value.

        The host's metrics unit may count at the same time.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while (counted := mps.do("server_deaths").get(NAME)) != expected and time.monotonic() < deadline:
            time.sleep(0.5)
        assert counted == expected

    def ended(number):
        mps.wait_until(f"[ $(journalctl -o cat -u {UNIT} | grep -c 'exited with status 1') -ge {number} ]")

    try:
        mps.ask("rm -f /run/openfleet-gpu-metrics/mps-servers.json")
        deaths(0)
        before = int(mps.ask(f"journalctl -o cat -u {UNIT} | grep -c 'exited with status 1' || true"))
        for number in (1, 2):
            mps.ask(start)
            ended(before + number)
            deaths(number)
        assert mps.seen()["running"] and mps.seen()["problem"] is None
        # A daemon that stops ends its servers. These do not count as dead.
        mps.ask(f"systemctl restart {UNIT}")
        deaths(2)
    finally:
        mps.ask("rm -rf /run/openfleet-gpu-metrics")


def test_limits_change_at_runtime_and_survive_a_restart(mps):
    mps.do("start", percentage=25, limit=LIMIT)
    pid = mps.pid()
    assert mps.do("adjustable", percentage=40, limit=3 * LIMIT) is True
    mps.do("adjust", percentage=40, limit=3 * LIMIT)
    assert mps.limits() == ("40.0", "6G", "6G")
    assert mps.pid() == pid
    mps.ask(f"systemctl restart {UNIT}")
    assert mps.limits() == ("40.0", "6G", "6G")
    assert mps.pid() != pid


def test_settings_that_need_a_restart(mps):
    mps.do("start", percentage=25, limit=LIMIT)
    assert mps.do("adjustable", devices=DEVICES[:1], percentage=25, limit=LIMIT) is False
    assert mps.do("adjustable", percentage=25, limit=None) is False
    mps.do("start", devices=DEVICES[:1], percentage=25)
    assert mps.limits() == ("25.0", "", "")
    assert f"CUDA_VISIBLE_DEVICES={DEVICES[0]}\0" in mps.ask(f"cat /proc/{mps.pid()}/environ")
    mps.do("stop")
    assert mps.do("adjustable", devices=DEVICES[:1], percentage=25) is False


def test_limits_changed_by_others_are_detected_and_restored(mps):
    mps.do("start", percentage=25, limit=LIMIT)
    mps.tell("set_default_active_thread_percentage 90")
    mps.tell("set_default_device_pinned_mem_limit 1 30G")
    seen = mps.seen()
    assert (seen["active_thread_percentage"], seen["pinned_memory_limits_bytes"]) == (90, [LIMIT, 15 * LIMIT])
    mps.do("adjust", percentage=25, limit=LIMIT)
    assert mps.limits() == ("25.0", "2G", "2G")


# --- failures -------------------------------------------------------------------------------------------------------


def test_killed_daemon_restarts_with_its_limits_in_the_same_directory(mps):
    mps.do("start", percentage=25, limit=LIMIT)
    mps.do("adjust", percentage=35, limit=LIMIT)
    pid, directory = mps.pid(), mps.ask(f"stat -c %i {PIPES}")
    mps.ask(f"systemctl kill --signal=KILL {UNIT}")
    changed = f'[ "$(systemctl show -p MainPID --value {UNIT})" != {pid} ]'
    mps.wait_until(f"{changed} && systemctl is-active --quiet {UNIT}")
    assert mps.limits() == ("35.0", "2G", "2G")
    assert mps.pid() not in (0, pid)
    assert mps.ask(f"stat -c %i {PIPES}") == directory


def test_daemon_that_root_quit_stays_down_and_is_named(mps):
    mps.do("start")
    mps.tell("quit")
    mps.wait_until(f"systemctl show -p ActiveState {UNIT} | grep -q inactive")
    seen = mps.seen()
    assert not seen["running"] and UNIT in seen["problem"]
    mps.do("start")
    assert mps.seen()["problem"] is None


def test_leftovers_of_a_dead_daemon_do_not_block(mps):
    mps.do("start", limit=LIMIT)
    mps.do("stop")
    # The cases are the pid of another process, a socket without a listener, and a directory in place of a file.
    dead = "import socket; socket.socket(socket.AF_UNIX).bind('%s/control')" % PIPES
    mps.ask(
        f"rm -rf {PIPES}/*; echo 1 >{PIPES}/nvidia-cuda-mps-control.pid; python3 -c {json.dumps(dead)}; "
        f"mkdir -p {PIPES}/log/x; touch {PIPES}/control_privileged"
    )
    mps.do("start", limit=LIMIT)
    assert mps.limits() == ("25.0", "2G", "2G")
    assert mps.ask(f"stat -c %F {PIPES}/log") == "fifo"
    # Release 550 writes this file, and release 535 does not.
    assert mps.host.run(f"cat {PIPES}/nvidia-cuda-mps-control.pid").stdout.strip() in ("", str(mps.pid()))


def test_daemon_that_fails_to_start_is_reported_with_its_log(mps):
    mps.do("start")
    mps.do("stop")
    mps.ask(f"rm -rf {LOGS} && echo in the way >{LOGS}")
    told = mps.fails("start")
    assert f'the MPS daemon "{NAME}": it does not start' in told
    assert "LOGS_DIRECTORY" in told and f"See `journalctl --unit {UNIT}`" in told
    mps.ask(f"rm {LOGS}")
    mps.do("start")


def test_daemon_continues_after_its_package_is_upgraded(mps):
    """Build a package with a higher version from the installed files.

    dpkg unpacks this package like an upgrade.
    """
    mps.do("start", limit=LIMIT)
    pid = mps.pid()
    version = mps.ask("dpkg-query -W -f '${Version}' nvidia-cuda-mps")
    mps.ask(
        "rm -rf /tmp/p && mkdir -p /tmp/p/DEBIAN && dpkg -s nvidia-cuda-mps | grep -v -E '^(Status|Conffiles)' | "
        "sed 's/^Version:.*/&+lab1/' >/tmp/p/DEBIAN/control && dpkg -L nvidia-cuda-mps | "
        "while read f; do [ -d $f ] || [ ! -e $f ] || echo $f; done | xargs cp --parents --target-directory=/tmp/p && "
        "dpkg-deb --build --root-owner-group /tmp/p /tmp/mps.deb && dpkg --install /tmp/mps.deb"
    )
    assert mps.ask("dpkg-query -W -f '${Version}' nvidia-cuda-mps") == f"{version}+lab1"
    assert mps.pid() == pid and mps.limits() == ("25.0", "2G", "2G")
    assert "program was replaced" in mps.seen()["problem"]
    assert mps.do("adjustable", percentage=30, limit=LIMIT) is False
    mps.do("start", limit=LIMIT)
    assert mps.seen()["problem"] is None
    assert mps.pid() != pid and mps.limits() == ("25.0", "2G", "2G")


def test_clients_cannot_fill_run_through_the_pipe_directory(mps):
    mps.do("start", percentage=25)
    used = int(mps.ask("df --output=used /run | tail -1"))
    # Containers of clients can write to the directory, and root in most containers is root of the host.
    assert mps.host.run(f"dd if=/dev/zero of={PIPES}/full bs=1M count=100").rc != 0
    assert int(mps.ask("df --output=used /run | tail -1")) < used + 1024
    assert set(re.findall("nosuid|nodev|noexec", mps.ask(f"findmnt -no OPTIONS {PIPES}"))) == {
        "nosuid",
        "nodev",
        "noexec",
    }
    # The daemon restarts, and the directory has free space again.
    pid = mps.pid()
    mps.ask(f"systemctl kill --signal=KILL {UNIT}")
    changed = f'[ "$(systemctl show -p MainPID --value {UNIT})" != {pid} ]'
    mps.wait_until(f"{changed} && systemctl is-active --quiet {UNIT}")
    assert mps.limits()[0] == "25.0"
    assert mps.seen()["pipe_directory_limited"] is True


def test_running_daemon_keeps_a_pipe_directory_without_limit(mps):
    """Keep the directory, because it contains the daemon's sockets.

    At its next start, the daemon gets a limited directory.
    """
    mount = "/etc/systemd/system/" + MOUNT
    mps.do("start", percentage=25)
    mps.ask(f"systemctl stop {UNIT} && systemctl disable --now '{MOUNT}' && rm '{mount}' && systemctl daemon-reload")
    mps.ask(f"systemctl start {UNIT}")
    before = mps.ask(f"stat -c %d:%i {PIPES}")
    assert (mps.seen()["outdated"], mps.seen()["pipe_directory_limited"]) == ([mount[1:]], False)
    mps.do("adjust", percentage=30)
    # Even if another daemon starts or this daemon is killed, the limited directory is not mounted.
    mps.do("start", "other", DEVICES[1:], 70)
    pid = mps.pid()
    mps.ask(f"systemctl kill --signal=KILL {UNIT}")
    mps.wait_until(f'[ "$(systemctl show -p MainPID --value {UNIT})" != {pid} ] && systemctl is-active --quiet {UNIT}')
    assert mps.ask(f"stat -c %d:%i {PIPES}") == before
    assert mps.limits()[0] == "30.0"
    assert mps.ask(f"systemctl is-enabled '{MOUNT}'") == "enabled"
    mps.do("start", percentage=30)
    seen = next(seen for seen in mps.do("observe") if seen["daemon"]["name"] == NAME)
    assert (seen["problem"], seen["pipe_directory_limited"]) == (None, True)
    assert mps.ask(f"stat -c %d:%i {PIPES}") != before


# --- permissions and removal --------------------------------------------------------------------


def test_systemd_enforces_the_units_sandbox(mps):
    mps.do("start")
    told = mps.ask(f"systemd-analyze security --no-pager {UNIT} | tail -1")
    (exposure,) = re.findall(r"exposure level for \S+: ([0-9.]+)", told)
    assert float(exposure) <= 3.0
    assert mps.host.run("systemd-analyze verify openfleet-mps@x.service").stderr == ""
    refused = mps.host.run(f"nsenter --mount --target {mps.pid()} touch /usr/x /etc/x")
    assert refused.stderr.count("Read-only file system") == 2
    status = mps.ask(f"cat /proc/{mps.pid()}/status")
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE) and re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    # CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETUID and CAP_SYS_PTRACE are bits 1, 5, 7 and 19 (capability.h).
    assert int(re.search(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)[1], 16) == 1 << 1 | 1 << 5 | 1 << 7 | 1 << 19


def test_users_reach_the_daemon_but_cannot_end_it(mps):
    mps.do("start", percentage=25)
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    assert mps.tell("get_default_active_thread_percentage", prefix=nobody) == "25.0"
    pid = mps.pid()
    assert "privilege" in mps.tell("quit", prefix=nobody)
    assert mps.pid() == pid
    mps.do("stop")
    assert mps.host.run(f"{nobody} ls {PIPES}").rc != 0


def test_server_runs_as_its_user_and_ends_with_the_daemon(mps):
    """Use a stand-in for the server, because a real server needs a GPU.

    The stand-in shows how systemd and the daemon treat the server.
    """
    server = "/usr/local/sbin/nvidia-cuda-mps-server"
    mps.ask(f"printf '#!/bin/sh\\nexec sleep 1000\\n' >{server} && chmod 755 {server}")
    try:
        mps.do("start", percentage=25, limit=LIMIT)
        mps.tell("start_server -uid 65534")
        seen = mps.seen()
        (pid,) = seen["server_pids"]
        assert (seen["problem"], seen["clients"]) == (None, [])
        mps.wait_until(f"grep -q sleep /proc/{pid}/comm")
        status = mps.ask(f"cat /proc/{pid}/status")
        assert re.search(r"^Uid:\s+65534\s+65534", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
        # This server never reports that it is ready, as if it hangs. The daemon and later servers have the new limits.
        mps.do("adjust", percentage=30, limit=LIMIT)
        seen = mps.seen()
        assert (seen["active_thread_percentage"], seen["problem"]) == (30, None)
        assert seen["silent_server_pids"] == [pid]
        mps.do("stop")
        assert not mps.host.file(f"/proc/{pid}").exists
    finally:
        mps.ask(f"rm {server}")


def test_logs_are_rotated(mps):
    mps.do("start")
    mps.ask(f"head -c 11000000 /dev/zero >{LOGS}/control.log && logrotate /etc/logrotate.d/openfleet-mps")
    assert mps.ask(f"ls {LOGS}").split() == ["control.log", "control.log.1.gz"]
    assert mps.host.file(f"{LOGS}/control.log").size == 0


def test_removal_is_complete(mps):
    everything = (
        "{ find /etc /run/openfleet-mps /var/log /usr/local -not -path '/var/log/journal*' 2>/dev/null; "
        "systemctl list-units --all --plain --no-legend 'openfleet-mps*'; "
        "systemctl list-unit-files --no-legend 'openfleet-mps*'; } | sort"
    )
    mps.ask("mkdir -p /etc/cdi")
    before = mps.ask(everything)
    mps.do("start", "one", DEVICES[:1])
    mps.do("start", "two", DEVICES[1:], limit=LIMIT)
    with_both = mps.ask(everything)
    mps.ask("systemctl kill --signal=KILL openfleet-mps@two.service")
    for name in ("one", "two"):
        mps.do("stop", name)
        mps.do("forget", name)
    assert mps.ask(everything) == before != with_both
    assert "openfleet-mps@two.service" in with_both
