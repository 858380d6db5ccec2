# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the driver's files on a lab host follow each change of instances."""

from __future__ import annotations

import re
import time

from gpu_hosts import WAIT_SECONDS

from tests.lab.lab_fixtures import reboot

PROC = "/proc/driver/nvidia"
#: Commands that print a path in `capabilities` and a minor number.
CAPABILITIES = f"cd {PROC}/capabilities && grep -r --include=access DeviceFileMinor . | sed 's/DeviceFileMinor: //'"
MINORS = "sed 's/ /:/' /proc/driver/nvidia-caps/mig-minors"
NODES = "ls /dev/nvidia-caps"


def pairs(text: str) -> dict[str, int]:
    return {
        path.replace("./", "").replace("/mig/", "/"): int(minor) for path, minor in re.findall(r"(\S+):(\d+)", text)
    }


def wanted(host) -> list[str]:
    """Return the access files for the instances that nvidia-smi shows on GPU 0.

    Each instance has one compute instance.
    """
    return sorted(
        path for gi in host.gpus()[0].instances for path in (f"gpu0/gi{gi}/access", f"gpu0/gi{gi}/ci0/access")
    )


def files_agree(host) -> str:
    """Return how the files differ from nvidia-smi, or "" if they agree."""
    paths = wanted(host)
    found, minors = pairs(host.ask(CAPABILITIES)), pairs(host.ask(MINORS))
    if sorted(found) != paths:
        return f"{sorted(found)} in {PROC}/capabilities, not {paths}"
    if found != {path: minors[path] for path in paths}:
        return f"{found}, and mig-minors has other numbers"
    nodes = {f"nvidia-cap{minor}" for minor in (1, 2, *found.values())}
    there = set(host.ask(NODES).split())
    return "" if there == nodes else f"nodes {sorted(there)}, not {sorted(nodes)}"


def wait_for_files(host) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while problem := files_agree(host):
        assert time.monotonic() < deadline, problem
        time.sleep(0.2)


def test_kernel_files_follow_the_command_and_nvidia_smi(apply, canary):
    wait_for_files(canary)
    assert len(wanted(canary)) == 4
    apply(canary, "second").succeeded()
    wait_for_files(canary)
    assert len(wanted(canary)) == 6
    canary.ask("nvidia-smi mig -dci && nvidia-smi mig -dgi")
    wait_for_files(canary)
    assert wanted(canary) == []
    canary.ask("nvidia-smi mig -cgi 9 -C")
    wait_for_files(canary)
    assert len(wanted(canary)) == 2


def describe_the_gpu(host) -> None:
    """Check that the files of GPU 0 and the kernel's own lists match NVML."""
    (address,) = host.ask(f"ls {PROC}/gpus").split()
    assert host.gpus()[0].uuid in host.ask(f"cat {PROC}/gpus/{address}/information")
    assert host.ask(f"cd /sys/bus/pci/devices/{address} && cat vendor device").split() == ["0x10de", "0x2330"]
    major = re.search(r"^ *(\d+) nvidia-caps$", host.ask("cat /proc/devices"), re.MULTILINE)
    assert major and host.ask("stat -c %t:%T /dev/nvidia-caps/nvidia-cap1") == f"{int(major.group(1)):x}:1"


def test_kernel_files_are_restored_after_a_reboot(canary):
    describe_the_gpu(canary)
    reboot(canary.host)
    wait_for_files(canary)
    assert len(wanted(canary)) == 4
    describe_the_gpu(canary)
