# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that lab hosts behave like real hosts.

The tests cover systemd, sandboxing and restarts.
"""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from tests.lab.host_state import describe_failures, wait_until_started
from tests.lab.lab_fixtures import BOOT_SECONDS, HOSTS, REPOSITORY, no_restart, runner

# Without --collect, a unit that fails on purpose would stay in the list of failed units.
RUN_UNIT = "systemd-run --quiet --wait --pipe --collect"


@pytest.mark.parametrize("name", HOSTS)
def test_systemd_started_everything(lab_host, name):
    host = lab_host(name)
    assert host.check_output("cat /proc/1/comm") == "systemd"
    assert describe_failures(runner(host)) == ""
    assert host.check_output("systemctl is-system-running") == "running"


def test_a_unit_with_a_protected_system_cannot_write_to_it(lab_host):
    host = lab_host("l40s")
    try:
        # If the container lacked SYS_ADMIN, systemd would silently ignore the property, and the command would succeed.
        refused = host.run(f"{RUN_UNIT} -p ProtectSystem=strict touch /usr/openfleet-probe")
        assert refused.rc != 0
        assert "Read-only file system" in refused.stderr
        # Without the property, the same command succeeds. So it was the sandbox that refused the command.
        assert host.run(f"{RUN_UNIT} touch /usr/openfleet-probe").rc == 0
    finally:
        host.run("rm -f /usr/openfleet-probe")


def test_unit_can_have_its_own_user(lab_host):
    host = lab_host("l40s")
    uid = int(host.check_output(f"{RUN_UNIT} -p DynamicUser=yes id -u"))
    # systemd.exec(5), DynamicUser=: UIDs come from the range 61184 to 65519.
    assert 61184 <= uid <= 65519


def test_unit_with_its_own_user_reads_a_credential(lab_host):
    host = lab_host("l40s")
    told = host.check_output(
        f"{RUN_UNIT} -p DynamicUser=yes -p LoadCredential=name:/etc/hostname sh -c 'id -u; cat $CREDENTIALS_DIRECTORY/name'"
    )
    uid, name = told.split()
    assert (uid != "0", name) == (True, "l40s")


def test_modules_are_forks_of_one_process(lab_host):
    """Check that tests/lab/ansible_code works.

    Without it, all tests pass but each module takes three times as long.
    """
    lab_host("l40s")
    # The script prints the grandparent of the module's process.
    script = "pid=$PPID; for i in 1 2; do pid=$(cut -d' ' -f4 /proc/$pid/stat); done; echo server $pid"
    command = ["ansible", "--inventory", str(REPOSITORY / "inventories/simulated"), "l40s", "--one-line"]
    command += ["--module-name", "ansible.builtin.shell", "--args", script]
    # The first module on a host starts the process, which needs some time to load.
    told = set()
    for _attempt in range(20):
        told = {re.search(r"server (\d+)", subprocess.check_output(command, text=True))[1] for _ in range(2)}
        if len(told) == 1 and told != {"0"}:
            break
    assert len(told) == 1 and told != {"0"}


def test_no_network_reaches_a_host(lab_host):
    interfaces = lab_host("l40s").check_output("ls /sys/class/net").split()
    assert interfaces == ["lo"]


def test_host_keeps_its_disk_over_a_reboot(lab_host):
    host = lab_host("l40s")
    started = host.check_output('cut -d" " -f22 /proc/1/stat')
    host.check_output("touch /var/lib/openfleet-probe /run/openfleet-probe")
    try:
        time.sleep(1)  # the start time of PID 1 has whole seconds
        host.run("systemctl reboot")
        deadline = time.monotonic() + BOOT_SECONDS
        while host.run('cut -d" " -f22 /proc/1/stat').stdout.strip() in ("", started):
            assert time.monotonic() < deadline, no_restart(host, BOOT_SECONDS)
            time.sleep(0.2)
        wait_until_started(runner(host))
        assert host.file("/var/lib/openfleet-probe").exists
        assert not host.file("/run/openfleet-probe").exists
    finally:
        host.run("rm -f /var/lib/openfleet-probe")
