# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secure Boot, the distribution's own packages, NVIDIA's installer: hosts that the others' stories leave alone."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from package_changes import differences, foretold


def test_secure_boot_without_a_trusted_key_installs_nothing_and_tells_the_steps(play, state_of):
    before = state_of("secure")
    for options in ((), ("--check",)):
        played = play("secure", *options, nvidia_driver_version="580.95.05")
        assert "mokutil --import /var/lib/dkms/mok.pub" in played.failed
        assert state_of("secure") == before


def test_secure_boot_with_an_enrolled_key_is_a_boot_as_any_other(play, lab_host, state_of):
    host = lab_host("secure")
    host.check_output("mkdir -p /var/lib/dkms && head -c 900 /dev/urandom >/var/lib/dkms/mok.pub")
    hardware = json.loads(host.file("/etc/simulated-hardware.json").content_string)
    text = json.dumps(dict(hardware, mok="/var/lib/dkms/mok.pub"))
    host.check_output("printf %%s '%s' >/etc/simulated-hardware.json && systemctl restart simulated-hardware" % text)
    before = state_of("secure")
    dry = play("secure", "--check", nvidia_driver_version="580.95.05")
    assert state_of("secure") == before
    wet = play("secure", nvidia_driver_version="580.95.05")
    assert wet.failed == ""
    assert dry.planned == wet.done
    after = state_of("secure")
    # A bare host: what Debian has for building modules comes too, and was foretold in its versions as well.
    assert {"dkms", "nvidia-driver-cuda"} < differences(before, after).keys()
    assert foretold(dry.planned) == differences(before, after)
    assert after.loaded == "580.95.05"
    # It has no initramfs of its own.
    assert not host.exists("update-initramfs")
    assert not host.exists("dracut")


def test_from_the_distributions_packages_to_the_runfile(play, lab_host, state_of):
    """The runfile is a file on the controller, and nothing without its checksum."""
    host = lab_host("pcie")
    gone = play("pcie", nvidia_driver_state="absent")
    assert gone.failed == ""
    assert "libcuda1" not in state_of("pcie").packages
    runfile = Path(__file__).with_name("stand-in.run")
    request = {
        "nvidia_driver_source": "runfile",
        "nvidia_driver_version": "580.95.05",
        "nvidia_driver_kernel_modules": "auto",
        "nvidia_driver_persistenced": False,
        "nvidia_driver_runfile": str(runfile),
    }
    bad = play("pcie", **request, nvidia_driver_runfile_sha256="0" * 64)
    assert "is not the file with SHA-256 " + "0" * 64 in bad.failed
    assert not host.file("/usr/bin/nvidia-uninstall").exists
    right = dict(request, nvidia_driver_runfile_sha256=hashlib.sha256(runfile.read_bytes()).hexdigest())
    played = play("pcie", **right)
    assert played.failed == ""
    assert state_of("pcie").loaded == "580.95.05"
    assert "--silent" in host.file("/var/log/nvidia-installer.log").content_string
    assert not play("pcie", **right).changed
    assert play("pcie", nvidia_driver_state="absent").failed == ""
    assert not host.file("/usr/bin/nvidia-uninstall").exists
