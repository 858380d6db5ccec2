# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test Secure Boot, the distribution's packages, and NVIDIA's installer.

Each case has its own host.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from driver_runs import LOOK, Ask, State, fail_if, play
from package_changes import differences, foretold


# tests/unit/module_utils/driver tests the refusals and the plans.
@pytest.mark.thorough
def test_secure_boot_needs_a_trusted_key(lab_host, state_of):
    """Install nothing without a trusted key, and print the steps to trust one."""
    host, before = lab_host("secure"), state_of("secure")
    hardware = json.loads(host.file("/etc/simulated-hardware.json").content_string)
    text = json.dumps(dict(hardware, mok="/var/lib/dkms/mok.pub"))
    enrol = (
        "mkdir -p /var/lib/dkms; head -c 900 /dev/urandom >/var/lib/dkms/mok.pub; "
        f"printf %s '{text}' >/etc/simulated-hardware.json; systemctl restart simulated-hardware"
    )
    asked = {"nvidia_driver_version": "580.95.05"}
    refused, not_planned, planned, wet = play(
        "secure",
        Ask(asked, then=LOOK, fails=True),
        Ask(asked, entry="plan", then=LOOK, fails=True),
        Ask(asked, entry="plan", first=enrol, then=LOOK),
        Ask(asked, then=LOOK),
    )
    for played in (refused, not_planned):
        assert "mokutil --import /var/lib/dkms/mok.pub" in played.failed
    for played in (refused, not_planned, planned):
        assert State.read(played.seen) == before
    assert planned.planned == wet.done
    after = State.read(wet.seen)
    # On a bare host, the run also installs Debian's packages for building modules, in the predicted versions.
    assert {"dkms", "nvidia-driver-cuda"} < differences(before, after).keys()
    assert foretold(planned.planned) == differences(before, after)
    assert after.loaded == "580.95.05"
    # The host has no initramfs.
    assert not host.exists("update-initramfs")
    assert not host.exists("dracut")


def test_change_from_distribution_packages_to_the_runfile(lab_host):
    """Install from a runfile on the controller, which needs a checksum."""
    runfile = Path(__file__).with_name("stand-in.run")
    request = {
        "nvidia_driver_source": "runfile",
        "nvidia_driver_version": "580.95.05",
        "nvidia_driver_kernel_modules": "auto",
        "nvidia_driver_persistenced": False,
        "nvidia_driver_runfile": str(runfile),
    }
    absent = {"nvidia_driver_state": "absent"}
    wrong = {**request, "nvidia_driver_runfile_sha256": "0" * 64}
    right = {**request, "nvidia_driver_runfile_sha256": hashlib.sha256(runfile.read_bytes()).hexdigest()}
    uninstaller = fail_if("ls /usr/bin/nvidia-uninstall")
    right, gone, bad, brought, again, _gone = play(
        "pcie",
        Ask(),
        Ask(absent, then=LOOK),
        Ask(wrong, then=uninstaller, fails=True),
        Ask(right, then=LOOK),
        Ask(right, then="cat /var/log/nvidia-installer.log"),
        Ask(absent, then=uninstaller),
    )
    assert not right.changed
    assert "libcuda1" not in State.read(gone.seen).packages
    assert "is not the file with SHA-256 " + "0" * 64 in bad.failed
    assert State.read(brought.seen).loaded == "580.95.05"
    assert not again.changed and "--silent" in again.seen
    assert not lab_host("pcie").file("/usr/bin/nvidia-uninstall").exists
