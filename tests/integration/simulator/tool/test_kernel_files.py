# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write and read the driver's kernel files in a separate mount namespace.

The tests do not use NVML.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.patience import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts: run as root")


def in_namespace(script: str) -> list[str]:
    """Return a command that runs a shell script in a mount namespace.

    The namespace has its own /dev.
    """
    # The script mounts an empty /dev, so a machine with GPUs keeps its own nodes.
    begin = "set -e; mount -t tmpfs dev /dev; mknod -m 666 /dev/null c 1 3\n"
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", begin + script]


def tool(host) -> str:
    return f"{sys.executable} {host.root}/usr/local/bin/gpusim"


@pytest.fixture
def within():
    """Return a function that runs a shell script and returns its output.

    The script runs in a mount namespace with its own /dev.
    """

    def run(host, script: str, check: bool = True) -> subprocess.CompletedProcess:
        define = f'gpusim() {{ {tool(host)} "$@"; }}\n'
        done = subprocess.run(
            in_namespace(define + script), env=host.environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_every_gpu_has_its_information(make_host, within):
    host = make_host({"model": "H100-80GB", "count": 2})
    gpus = json.loads(host.gpusim("show", "--json"))["gpus"]
    said = within(host, "gpusim kernel-files; cd /proc/driver/nvidia/gpus; tail -n +1 */information").stdout
    by_address = {}
    for part in said.split("==> ")[1:]:
        name, _, text = part.partition("/information <==\n")
        by_address[name] = dict(line.split(":", 1) for line in text.split("\n") if ":" in line)
    assert sorted(by_address) == [gpu["pci_address"][4:].lower() for gpu in gpus]
    for index, figures in enumerate(by_address[name] for name in sorted(by_address)):
        figures = {key: value.strip() for key, value in figures.items()}
        assert figures["Model"] == "NVIDIA H100 80GB HBM3"
        assert figures["GPU UUID"] == gpus[index]["uuid"]
        assert figures["Video BIOS"] == "96.00.99.00.01"
        assert figures["Device Minor"] == str(index)


def test_the_version_is_the_drivers(make_host, within):
    said = within(make_host({"model": "T4-16GB"}), "gpusim kernel-files; cat /proc/driver/nvidia/version").stdout
    # Programs search for these words in front of the version number.
    assert said.splitlines()[0].startswith("NVRM version: NVIDIA UNIX ")
    assert "Kernel Module  580.105.08  " in said.splitlines()[0]


def test_minors_of_instances_are_those_of_the_mig_user_guide(make_host, within):
    host = make_host({"model": "H100-80GB"})
    lines = within(host, "gpusim kernel-files; cat /proc/driver/nvidia-caps/mig-minors").stdout.splitlines()
    minors = dict(line.split(" ") for line in lines)
    assert lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]
    # Each of the 15 GPU instances has 1 + 8 minors, so GPU 1's minors start 135 after GPU 0's.
    assert (minors["gpu0/gi1/access"], minors["gpu1/gi0/access"]) == ("12", "138")
    # The last minor of 32 GPUs: 3 + 31 * 135 + 14 * 9 + 1 + 7.
    assert minors["gpu31/gi14/ci7/access"] == "4322" and len(lines) == 2 + 32 * 135


def test_capabilities_follow_the_instances(make_host, within):
    host = make_host({"model": "H100-80GB"})
    instance = host.create_instance(14, 0)
    minor = 3 + 9 * instance
    shown = "stat -c '%n %a' /dev/nvidia-caps/*; cat /proc/driver/nvidia/capabilities/gpu0/mig/gi*/ci0/access"
    said = within(host, f"gpusim kernel-files; {shown}").stdout.splitlines()
    nodes = dict(line.split() for line in said if line.startswith("/dev"))
    assert nodes == {
        "/dev/nvidia-caps/nvidia-cap1": "400",
        "/dev/nvidia-caps/nvidia-cap2": "400",
        f"/dev/nvidia-caps/nvidia-cap{minor}": "444",
        f"/dev/nvidia-caps/nvidia-cap{minor + 1}": "444",
    }
    assert f"DeviceFileMinor: {minor + 1}" in said
    # If gpusim writes the files again after destroying the instance, the folder has no file for this instance.
    script = "gpusim kernel-files; gpusim reboot; gpusim kernel-files; cd /proc/driver/nvidia; ls /dev/nvidia-caps capabilities"
    said = within(host, script).stdout.split()
    assert said == ["/dev/nvidia-caps:", "nvidia-cap1", "nvidia-cap2", "capabilities:", "mig"]


def test_each_node_has_its_link_in_dev_char(make_host, within):
    script = """
    mkdir /dev/char; gpusim kernel-files
    cd /dev/char; for link in *; do test -c $link; readlink $link; done
    gpusim kernel-files --remove; ls -A /dev/char | wc -l
    """
    *links, left = within(make_host({"model": "T4-16GB"}), script).stdout.split()
    assert links == ["../nvidia-caps/nvidia-cap1", "../nvidia-caps/nvidia-cap2"] and left == "0"


def test_a_lost_gpu_has_no_information(make_host, within):
    host = make_host({"model": "T4-16GB", "count": 2})
    host.gpusim("lose", "0")
    said = within(host, "gpusim kernel-files; ls /proc/driver/nvidia/gpus").stdout.split()
    assert len(said) == 1


def test_files_are_removed(make_host, within):
    script = """
    mounts=$(cut -d' ' -f1,2 /proc/mounts)
    gpusim kernel-files; gpusim kernel-files --remove
    test "$mounts" = "$(cut -d' ' -f1,2 /proc/mounts)"
    ls /dev; ls /proc/driver | grep nvidia || true
    """
    assert within(make_host({"model": "T4-16GB"}), script).stdout.split() == ["null"]


def test_kernel_lists_the_drivers_numbers_with_its_own(make_host, within):
    kernels = Path("/proc/devices").read_text().splitlines()
    script = "gpusim kernel-files; gpusim kernel-files; cat /proc/devices; stat -c %t /dev/nvidia-caps/nvidia-cap1"
    *lines, major = within(make_host({"model": "T4-16GB"}), script).stdout.splitlines()
    characters = lines[: lines.index("Block devices:")]
    added = [line for line in lines if line not in kernels]
    assert added == ["195 nvidia", f"{int(major, 16)} nvidia-caps"] and set(added) <= set(characters)
    assert [line for line in lines if line not in added] == kernels


def test_the_module_is_listed_where_the_kernel_lists_modules(make_host, within):
    done = within(make_host({"model": "T4-16GB"}), "gpusim kernel-files; cat /proc/modules || true")
    if Path("/proc/modules").exists():
        kernels = [line for line in Path("/proc/modules").read_text().splitlines() if not line.startswith("nvidia ")]
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["nvidia", *(k.split()[0] for k in kernels)]
    else:
        assert "left out: /proc/modules: this kernel has no such file" in done.stderr


def test_gpus_are_pci_devices_among_the_kernels_own(make_host, within):
    host = make_host({"model": "H100-80GB", "count": 2})
    folder = Path("/sys/bus/pci/devices")
    kernels = sorted(path.name for path in folder.iterdir())
    gpu = json.loads(host.gpusim("show", "--json"))["gpus"][1]
    address = gpu["pci_address"][4:].lower()
    files = "vendor device class subsystem_vendor numa_node max_link_speed max_link_width"
    script = f"""gpusim kernel-files; cd {folder}; ls; echo; cat */vendor | grep -c 0x10de
    cd {address}; cat {files}; readlink -f driver; od -An -tx2 -N4 config
    """
    listed, _, said = within(host, script).stdout.partition("\n\n")
    assert set(kernels) < set(listed.split()) and address in listed.split()
    assert said.splitlines() == [
        "2", "0x10de", "0x2330", "0x030200", "0x10de", str(gpu["numa_node"]), "32.0 GT/s PCIe", "16",
        "/proc/driver/nvidia", " 10de 2330",
    ]  # fmt: skip


def test_the_files_follow_instances_made_by_any_client(make_host):
    host = make_host({"model": "H100-80GB"})
    follow = in_namespace(f"exec {tool(host)} kernel-files --follow")
    follower = subprocess.Popen(follow, env=host.environment, stdin=subprocess.DEVNULL)
    host.children.append(follower)
    # The root directory in the follower's mount namespace.
    root = Path(f"/proc/{follower.pid}/root")
    capabilities, nodes = root / "proc/driver/nvidia/capabilities", root / "dev/nvidia-caps"
    wait_until(lambda: (nodes / "nvidia-cap2").exists(), "the first files")
    instance = host.create_instance(14, 0)
    own = capabilities / f"gpu0/mig/gi{instance}/ci0/access"
    node = nodes / f"nvidia-cap{3 + 9 * instance + 1}"
    wait_until(lambda: own.exists() and node.exists(), "the files of the instance")
    host.nvml(
        """
        made = N.nvmlDeviceGetGpuInstanceById(gpu, INSTANCE)
        N.nvmlComputeInstanceDestroy(N.nvmlGpuInstanceGetComputeInstanceById(made, 0))
        result = N.nvmlGpuInstanceDestroy(made)
    """.replace("INSTANCE", str(instance))
    )
    wait_until(lambda: not own.exists() and not node.exists(), "the end of the files")
    assert follower.poll() is None and (capabilities / "mig/config").exists()


def test_a_real_drivers_files_are_left_alone(make_host, within):
    # A foreign mount on /proc/driver represents a real driver's folder.
    script = """
    mount -t tmpfs other /proc/driver; mkdir /proc/driver/nvidia
    gpusim kernel-files
    """
    done = within(make_host({"model": "T4-16GB"}), script, check=False)
    assert done.returncode == 1 and "this host has a real driver" in done.stderr
