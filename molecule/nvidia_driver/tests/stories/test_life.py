# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test changes and failures of a driver.

The tests upgrade within a branch and across branches, and downgrade. They run in order, and each test starts with the
state that the previous test left. A comment before each group of tests gives the driver version with which the group
starts.
"""

from __future__ import annotations

import base64
import dataclasses

import pytest
from driver_runs import LOOK, Ask, State, fail_if, play
from package_changes import differences, foretold

from tests.lab.lab_fixtures import reboot
from tests.thorough import THOROUGH, sample

HGX, MIRROR = "hgx", "http://127.0.0.1:8080"
PARTS = {"firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-fabricmanager",
         "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-persistenced"}  # fmt: skip


def versions(state):
    return {state.packages.get(name) for name in PARTS}


def is_whole(state, version):
    """Check that all parts have one version and are held, with no incomplete change.

    The module must be loaded.
    """
    assert versions(state) == {version + "-1"}
    assert state.loaded == version
    assert set(state.held) >= PARTS
    assert state.broken == ""


#: Command that prints the states of the required services, and the process of the client that uses the GPUs.
SERVICES = "systemctl is-active nvidia-persistenced nvidia-fabricmanager client | xargs; systemctl show --property MainPID client"
#: Command that the tests run after a driver change. It prints SERVICES first, then the state of the driver.
SEE = SERVICES + "; echo ===; " + LOOK


def see(text: str) -> tuple[State, str, str]:
    """Return the state, the states of the services, and the client's process."""
    services, state = text.split("===\n", 1)
    active, client = services.splitlines()
    return State.read(state), active, client


RUNNING = "active active active"


def runs(host):
    assert host.run(SERVICES).stdout.splitlines()[0] == RUNNING


# -- From 580.95.05 ----------------------------------------------------------------------------------------------------


def test_upgrades_by_others_do_not_change_the_driver(lab_host, state_of):
    host, before = lab_host(HGX), state_of(HGX)
    assert host.run("apt-get update").rc == 0
    assert "590.48.01-1" in host.check_output("apt-cache madison nvidia-driver-cuda")
    for how in ("upgrade", "dist-upgrade", "dist-upgrade -o Dir::Etc::preferencesparts=/nowhere"):
        done = host.run("DEBIAN_FRONTEND=noninteractive apt-get --yes " + how)
        assert done.rc == 0, done.stderr
    # This upgrade ran without the pin. So only the holds kept the packages at their version.
    assert "have been kept back" in done.stdout
    assert state_of(HGX).packages == before.packages


#: Requests that are added to version 580.105.08, and the expected errors.
REFUSED = [
    ({"repository_url": MIRROR + "/unsigned/repos/{directory}/{architecture}"}, "is not signed"),
    ({"repository_url": MIRROR + "/foreign/repos/{directory}/{architecture}"}, "is not signed"),
    ({"repository_fingerprints": ["EB693B3035CD5710E231E123A4B469963BF863CC"]}, "but the trusted fingerprint is"),
    ({"repository_url": "http://127.0.0.1:9/nobody/{directory}"}, "cannot be used"),
    ({"version": "580.1.1"}, "Available: 590.48.01, 590.44.01, 580.105.08, 580.95.05"),
    ({"reboot": "never"}, "a reboot is needed"),
    ({"kernel_modules": "proprietary", "version": "620"}, "has no proprietary modules"),
]
NEWER = {"nvidia_driver_version": "580.105.08"}


def refusals(cases) -> list[Ask]:
    return [
        Ask({**NEWER, **{"nvidia_driver_" + name: value for name, value in asked.items()}}, then=SEE, fails=True)
        for asked, _said in cases
    ]


def test_invalid_requests_are_refused_and_failing_mirror_changes_nothing(lab_host):
    """Refuse invalid requests, also in the entry point `plan`.

    First check that a run without changes executes only one task on the host.
    """
    before = see(lab_host(HGX).check_output(SEE))
    cases = [REFUSED[number] for number in sample(range(len(REFUSED)), 2)]
    right, *refused, died, planned, not_planned = play(
        HGX,
        Ask(then=SEE),
        *refusals(cases),
        Ask(NEWER, first="touch /srv/mirror/.dies", then="rm /srv/mirror/.dies; " + SEE, fails=True),
        Ask(NEWER, entry="plan", then=SEE),
        Ask({**NEWER, "nvidia_driver_reboot": "never"}, entry="plan", then=SEE, fails=True),
    )
    assert (right.changed, right.executions) == (False, 1)
    for (asked, said), refusal in zip(cases, refused):
        assert said in refusal.failed, asked
    assert "some packages could not be downloaded" in died.failed
    assert set(foretold(planned.planned)) == PARTS
    assert "a reboot is needed" in not_planned.failed
    # The client has the same process as before, so it was not stopped.
    assert before[1] == RUNNING
    for played in (right, *refused, died, planned, not_planned):
        assert see(played.seen) == before, played.failed


#: Start a service that has a GPU open and is not drained. /dev/nvidia0 is a plain file, because the lab has no driver.
TRAIN = "touch /dev/nvidia0; systemd-run --quiet --unit training sh -c 'exec sleep infinity </dev/nvidia0'"
STOP_TRAINING = "systemctl stop training; rm /dev/nvidia0"


def test_a_workload_that_is_not_drained_is_named_before_anything_changes(lab_host):
    """Refuse to upgrade while a service uses a GPU.

    A drain that stops the service, or `force`, permits the upgrade. If the service starts during the drain, the
    role starts the clients again.
    """
    before = see(lab_host(HGX).check_output(SEE))
    planned, refused, listed, forced, late = play(
        HGX,
        Ask(NEWER, entry="plan", first=TRAIN, then=SEE, fails=True),
        Ask(NEWER, then="systemctl is-active training >&2; " + SEE, fails=True),
        Ask({**NEWER, "gpu_drain_services": ["client", "training"]}, entry="plan", then=SEE),
        Ask({**NEWER, "nvidia_driver_on_busy": "force"}, entry="plan", then=STOP_TRAINING + "; " + SEE),
        Ask(
            {**NEWER, "gpu_drain_commands_before": [TRAIN]},
            then=f"systemctl is-active training >&2; {STOP_TRAINING}; apt-get clean; {SEE}",
            fails=True,
        ),
    )
    for played in (planned, refused, late):
        assert "gpu 0 (0000:1a:00.0), whose driver would change, is in use by pid " in played.failed
        assert "training.service" in played.failed
    for played in (planned, refused, listed, forced):
        # The client has the same process as before, so it was not stopped.
        assert see(played.seen) == before, played.failed
    assert set(foretold(listed.planned)) == set(foretold(forced.planned)) == PARTS
    state, active, client = see(late.seen)
    assert (state, active) == (before[0], RUNNING)
    assert client != before[2], "the drain did not stop the client"


def test_upgrade_within_the_branch_follows_the_dry_run(lab_host, state_of):
    """Compare the upgrade with the dry run.

    The dry run refuses the same requests. Afterwards the branch stays until an upgrade is requested.
    """
    before = see(lab_host(HGX).check_output(SEE))
    cases = [REFUSED[number] for number in sample(range(len(REFUSED)), len(REFUSED) - 1)]
    *refused, dry = play(HGX, *refusals(cases), Ask(NEWER, then=SEE), check=True)
    for (asked, said), refusal in zip(cases, refused):
        assert said in refusal.failed, asked
    for played in (*refused, dry):
        assert see(played.seen) == before, played.failed
    wet, kept, upgrade = play(
        HGX,
        Ask(NEWER, then=SEE),
        Ask({"nvidia_driver_version": "580"}, then=SEE),
        Ask({"nvidia_driver_version": "590", "nvidia_driver_upgrade": True}, entry="plan"),
    )
    after, active, _client = see(wet.seen)
    assert dry.planned == wet.done
    assert foretold(dry.planned) == differences(before[0], after) == dict.fromkeys(PARTS, "580.105.08-1")
    is_whole(after, "580.105.08")
    assert active == RUNNING
    assert not kept.changed and see(kept.seen)[0] == after
    assert set(foretold(upgrade.planned).values()) == {"590.48.01-1"}


# -- From 580.105.08 ---------------------------------------------------------------------------------------------------


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


def test_failed_upgrade_keeps_the_old_driver_and_killed_one_is_completed(lab_host, state_of):
    """Keep the old driver, even if no source has its packages any more.

    A killed upgrade is completed. Then a downgrade across branches needs a reboot by the operator.
    """
    host, before = lab_host(HGX), state_of(HGX)
    program, hook = "/usr/local/sbin/kill-at", "/etc/dpkg/dpkg.cfg.d/kill"
    encoded = base64.b64encode(KILL.encode()).decode()
    mirror = "/srv/mirror/cuda/repos/*/*"
    newest = {"nvidia_driver_version": "590.48.01"}
    later = {"nvidia_driver_version": "580.95.05", "nvidia_driver_reboot": "later"}
    broken, right, killed, finished, pending = play(
        HGX,
        Ask(
            {"nvidia_driver_version": "590.44.01"},
            first=f"apt-get clean; mkdir /srv/gone; mv {mirror}/*_580.105.08-1_*.deb /srv/gone",
            then="dkms status | grep -q 580.105.08; " + fail_if("ls /var/lib/openfleet-gpu/driver.json") + SEE,
            fails=True,
        ),
        Ask(NEWER, first="mv /srv/gone/* /srv/mirror/cuda/repos/*/x86_64/"),
        Ask(
            newest,
            first=f"echo {encoded} | base64 -d >{program}; chmod 755 {program}; echo status-logger={program} >{hook}",
            then=f"rm {hook} {program}; ls /var/lib/openfleet-gpu/driver.json >&2; {SEE}",
            fails=True,
        ),
        Ask(newest, then=fail_if("ls /var/lib/openfleet-gpu/driver.json") + SEE),
        Ask(later, then=SEE),
    )
    assert "580.105.08 was restored" in broken.failed
    assert "Bad return status for module build" in broken.failed
    after, active, _client = see(broken.seen)
    is_whole(after, "580.105.08")
    assert (after.packages, after.held, active) == (before.packages, before.held, RUNNING)
    # The next run has nothing to repair.
    assert not right.changed
    torn, _active, _client = see(killed.seen)
    assert torn.broken or len(versions(torn)) > 1, "it was killed too late to hurt"
    assert finished.planned[0].startswith("complete the interrupted change from 580.105.08 to 590.48.01, repair ")
    assert finished.done[0] == finished.planned[0]
    after, active, _client = see(finished.seen)
    is_whole(after, "590.48.01")
    assert active == RUNNING
    after, active, _client = see(pending.seen)
    assert versions(after) == {"580.95.05-1"}
    assert after.loaded == "590.48.01"
    assert active.split()[2] == "inactive", "a client would meet two versions"
    reboot(host)


# -- From 580.95.05 ----------------------------------------------------------------------------------------------------


#: The operator's reboot completed the earlier run.
RESUMED = Ask(
    {"nvidia_driver_version": "580.95.05", "nvidia_driver_reboot": "later"}, first="systemctl stop client", then=SEE
)
#: In the thorough run, an earlier test has already resumed the client. If this test stopped the client again, no run would
#: start it.
RESUMED_BEFORE_REMOVAL = dataclasses.replace(RESUMED, first="") if THOROUGH else RESUMED


@pytest.mark.thorough
def test_another_reboot_fixes_differing_parts_after_the_operators_reboot():
    resumed, differ, cured = play(
        HGX,
        RESUMED,
        Ask(
            {"nvidia_driver_reboot": "never"},
            first="echo 580.65.06 >/sys/module/nvidia/version",
            fails=True,
        ),
        Ask(then=SEE),
    )
    assert "the loaded kernel module is 580.65.06, and the driver's other parts are 580.95.05" in differ.failed
    assert cured.done == ()
    for played in (resumed, cured):
        after, active, _client = see(played.seen)
        is_whole(after, "580.95.05")
        assert active == RUNNING


def test_clients_run_after_the_operators_reboot_and_removal_is_complete(lab_host):
    host = lab_host(HGX)
    absent = {"nvidia_driver_state": "absent"}
    resumed, foretold_removal, removal, again = play(
        HGX, RESUMED_BEFORE_REMOVAL, Ask(absent, entry="plan", then=SEE), Ask(absent, then=SEE), Ask(absent)
    )
    assert resumed.planned == ()
    after, active, _client = see(resumed.seen)
    is_whole(after, "580.95.05")
    assert active == RUNNING
    assert foretold_removal.seen == resumed.seen
    assert foretold_removal.planned == removal.done
    after, _active, _client = see(removal.seen)
    assert not PARTS & set(after.packages)
    assert (after.loaded, after.held, after.broken) == ("", (), "")
    assert host.check_output("find /etc /var -name '*openfleet*'") == ""
    assert "openfleet" not in host.check_output("lsinitramfs /boot/initrd.img-$(uname -r)")
    assert not again.changed
    assert host.service("client").is_running
