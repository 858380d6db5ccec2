# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to a driver in its life: upgrades within a branch and across, downgrade, and all that can go wrong.

In this order: each test takes the host as the one before left it, and says at its start which version that is.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest
from lab_fixtures import reboot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from package_changes import differences, foretold

HGX, MIRROR = "hgx", "http://127.0.0.1:8080"
REFUSALS = Path(__file__).with_name("refusals.yml")
PARTS = {"firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-fabricmanager",
         "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-persistenced"}  # fmt: skip


def versions(state):
    return {state.packages.get(name) for name in PARTS}


def is_whole(state, version):
    """One version in all parts, loaded, held, and nothing half done."""
    assert versions(state) == {version + "-1"}
    assert state.loaded == version
    assert set(state.held) >= PARTS
    assert state.broken == ""


def runs(host):
    services = host.run("systemctl is-active nvidia-persistenced nvidia-fabricmanager client").stdout.split()
    assert services == ["active"] * 3


# -- From 580.95.05 ----------------------------------------------------------------------------------------------------


def test_a_run_that_changes_nothing_is_one_execution(play):
    played = play(HGX)
    assert (played.failed, played.changed) == ("", False)
    assert played.executions == 1


def test_other_peoples_upgrades_leave_the_driver_alone(lab_host, state_of):
    host, before = lab_host(HGX), state_of(HGX)
    assert host.run("apt-get update").rc == 0
    assert "590.48.01-1" in host.check_output("apt-cache madison nvidia-driver-cuda")
    for how in ("upgrade", "dist-upgrade", "dist-upgrade -o Dir::Etc::preferencesparts=/nowhere"):
        done = host.run("DEBIAN_FRONTEND=noninteractive apt-get --yes " + how)
        assert done.rc == 0, done.stderr
    # The last one went by the holds alone, without the pin.
    assert "have been kept back" in done.stdout
    assert state_of(HGX).packages == before.packages


#: What is asked for beside version 580.105.08, and what the refusal says.
REFUSED = [
    ({"url": MIRROR + "/unsigned/repos/{directory}/{architecture}"}, "is not signed"),
    ({"url": MIRROR + "/foreign/repos/{directory}/{architecture}"}, "is not signed"),
    ({"fingerprints": ["EB693B3035CD5710E231E123A4B469963BF863CC"]}, "is to be trusted"),
    ({"url": "http://127.0.0.1:9/nobody/{directory}"}, "cannot be used"),
    ({"version": "580.1.1"}, "There is: 590.48.01, 590.44.01, 580.105.08, 580.95.05"),
    ({"reboot": "never"}, "a reboot is needed"),
    ({"kernel_modules": "proprietary", "version": "620"}, "has no proprietary modules"),
]


@pytest.mark.parametrize("options", [(), ("--check",)], ids=["run", "check"])
def test_what_must_not_be_is_refused_with_nothing_changed(play, lab_host, state_of, options):
    before = state_of(HGX)
    played = play(HGX, *options, playbook=REFUSALS, refusals=[asked for asked, _said in REFUSED])
    assert played.failed == ""
    assert not played.changed
    assert len(played.said) == len(REFUSED)
    for (asked, said), refusal in zip(REFUSED, played.said):
        assert said in refusal, asked
    assert state_of(HGX) == before
    runs(lab_host(HGX))


def test_a_mirror_that_dies_half_way_costs_nobody_anything(play, lab_host, state_of):
    host, before = lab_host(HGX), state_of(HGX)
    client = host.check_output("systemctl show --property MainPID client")
    host.run("touch /srv/mirror/.dies")
    try:
        played = play(HGX, nvidia_driver_version="580.105.08")
    finally:
        host.run("rm /srv/mirror/.dies")
    assert "not all of them could be fetched" in played.failed
    assert state_of(HGX) == before
    assert host.check_output("systemctl show --property MainPID client") == client, "the client was taken off"
    runs(host)


def test_the_entry_point_plan_only_plans(play, state_of):
    before = state_of(HGX)
    played = play(HGX, entry_point="plan", nvidia_driver_version="580.105.08")
    assert played.failed == ""
    assert set(foretold(played.planned)) == PARTS
    assert state_of(HGX) == before
    refused = play(HGX, entry_point="plan", nvidia_driver_version="580.105.08", nvidia_driver_reboot="never")
    assert "a reboot is needed" in refused.failed


def test_an_upgrade_within_the_branch_does_what_the_dry_run_said(play, lab_host, state_of):
    before = state_of(HGX)
    dry = play(HGX, "--check", nvidia_driver_version="580.105.08")
    assert state_of(HGX) == before
    wet = play(HGX, nvidia_driver_version="580.105.08")
    after = state_of(HGX)
    assert (dry.failed, wet.failed) == ("", "")
    assert dry.planned == wet.done
    assert foretold(dry.planned) == differences(before, after) == dict.fromkeys(PARTS, "580.105.08-1")
    is_whole(after, "580.105.08")
    runs(lab_host(HGX))


# -- From 580.105.08 ---------------------------------------------------------------------------------------------------


def test_a_branch_keeps_what_is_there_until_an_upgrade_is_asked_for(play):
    assert not play(HGX, nvidia_driver_version="580").changed
    asked = play(HGX, "--check", nvidia_driver_version="590", nvidia_driver_upgrade=True)
    assert set(foretold(asked.planned).values()) == {"590.48.01-1"}


def test_an_upgrade_that_fails_leaves_the_old_driver(play, lab_host, state_of):
    """Also where no source has the old version any more."""
    lab_host(HGX).check_output(
        "apt-get clean; mkdir /srv/gone; mv /srv/mirror/cuda/repos/*/*/*_580.105.08-1_*.deb /srv/gone"
    )
    before = state_of(HGX)
    played = play(HGX, nvidia_driver_version="590.44.01")
    assert "The host is on 580.105.08 again" in played.failed
    assert "Bad return status for module build" in played.failed
    after = state_of(HGX)
    is_whole(after, "580.105.08")
    assert after.packages == before.packages
    assert after.held == before.held
    host = lab_host(HGX)
    runs(host)
    assert "580.105.08" in host.check_output("dkms status")
    assert not host.file("/var/lib/openfleet-gpu/driver.json").exists
    host.check_output("mv /srv/gone/* /srv/mirror/cuda/repos/*/x86_64/")
    # And the next run finds nothing to mend.
    assert not play(HGX, nvidia_driver_version="580.105.08").changed


KILL = """#!/usr/bin/python3
# dpkg tells each state of each package: at the chosen one everybody who is at work is killed.
import os, signal, sys
for line in sys.stdin:
    if line.startswith("status: libnvidia-ml1") and line.rstrip().endswith(" unpacked"):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open("/proc/%s/cmdline" % pid).read()
            except OSError:
                continue
            if int(pid) not in (1, os.getpid()) and any(word in words for word in ("ansible", "apt-get", "dpkg")):
                if "kill-at" not in words:
                    os.kill(int(pid), signal.SIGKILL)
        sys.exit()
"""


def test_a_run_that_was_killed_is_finished_by_the_next_one(play, lab_host, state_of):
    host = lab_host(HGX)
    program, hook = "/usr/local/sbin/kill-at", "/etc/dpkg/dpkg.cfg.d/kill"
    encoded = base64.b64encode(KILL.encode()).decode()
    host.check_output("echo %s | base64 -d >%s && chmod 755 %s" % (encoded, program, program))
    host.check_output("echo status-logger=%s >%s" % (program, hook))
    played = play(HGX, nvidia_driver_version="590.48.01")
    host.run("rm %s %s" % (hook, program))
    assert played.failed
    torn = state_of(HGX)
    assert torn.broken or len(versions(torn)) > 1, "it was killed too late to hurt"
    assert host.file("/var/lib/openfleet-gpu/driver.json").exists
    played = play(HGX, nvidia_driver_version="590.48.01")
    assert played.failed == ""
    assert played.planned[0] == "finish what was interrupted"
    is_whole(state_of(HGX), "590.48.01")
    runs(host)
    assert not host.file("/var/lib/openfleet-gpu/driver.json").exists


# -- From 590.48.01 ----------------------------------------------------------------------------------------------------


def test_a_downgrade_across_branches_with_the_reboot_left_to_the_operator(play, lab_host, state_of):
    host = lab_host(HGX)
    played = play(HGX, nvidia_driver_version="580.95.05", nvidia_driver_reboot="later")
    assert played.failed == ""
    pending = state_of(HGX)
    assert versions(pending) == {"580.95.05-1"}
    assert pending.loaded == "590.48.01"
    assert not host.service("client").is_running, "a client would meet two versions"
    reboot(host)
    host.run("systemctl stop client")
    played = play(HGX, nvidia_driver_version="580.95.05", nvidia_driver_reboot="later")
    assert (played.failed, played.planned) == ("", ())
    is_whole(state_of(HGX), "580.95.05")
    runs(host)


# -- From 580.95.05 ----------------------------------------------------------------------------------------------------


def test_parts_that_differ_are_reported_and_cured_by_a_reboot(play, lab_host, state_of):
    host = lab_host(HGX)
    host.run("echo 580.65.06 >/sys/module/nvidia/version")
    played = play(HGX, nvidia_driver_reboot="never")
    assert "the loaded kernel module is 580.65.06, and the driver's other parts are 580.95.05" in played.failed
    played = play(HGX)
    assert (played.failed, played.done) == ("", ())
    is_whole(state_of(HGX), "580.95.05")
    runs(host)


def test_removal_leaves_no_trace(play, lab_host, state_of):
    host = lab_host(HGX)
    before = state_of(HGX)
    dry = play(HGX, "--check", nvidia_driver_state="absent")
    assert state_of(HGX) == before
    wet = play(HGX, nvidia_driver_state="absent")
    assert (wet.failed, dry.planned) == ("", wet.done)
    after = state_of(HGX)
    assert not PARTS & set(after.packages)
    assert (after.loaded, after.held, after.broken) == ("", (), "")
    assert host.check_output("find /etc /var -name '*openfleet*'") == ""
    assert "openfleet" not in host.check_output("lsinitramfs /boot/initrd.img-$(uname -r)")
    assert not play(HGX, nvidia_driver_state="absent").changed
    assert host.service("client").is_running
