# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test GPUs that are on the PCI bus but that the driver does not list.

The tests mount a folder over the machine's PCI bus.
"""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.integration.command_host import PYTHON, build_command

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts: run as root")

MOUNT = 'mount --bind "$0" /sys/bus/pci/devices && exec "$@"'
MISSING = "0000:f1:00.0"
EMPTY = "host\ndriver_version 580.65.06\ncuda_version 13000\n"


@pytest.fixture(name="bus")
def of_the_host(host, tmp_path):
    """Return a folder that represents the PCI bus with the host's GPUs and one more."""
    host.create([{"model": "H100-80GB", "count": 2}])
    folder = tmp_path / "devices"

    def add(address):
        device = folder / address
        device.mkdir(parents=True)
        for name, text in {"vendor": "0x10de", "class": "0x030200", "device": "0x2330"}.items():
            (device / name).write_text(text + "\n")

    for gpu in host.module("gpu_info")["gpus"]:
        add(gpu["pci_address"])
    add(MISSING)
    return folder


@pytest.fixture(name="command")
def of_the_terminal(host, bus, tmp_path):
    path = build_command(tmp_path / "gpu-layout")

    def run(*words):
        more = ["--state-directory", str(host.folder / "state.d")] if words[0] in ("plan", "apply") else []
        return host.run(
            ["unshare", "--mount", "sh", "-c", MOUNT, str(bus), PYTHON, str(path), *words, *more], check=False
        )

    return run


def lose_all(host):
    """Make the driver list no GPU."""
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).gpusimCreate(sys.argv[2].encode()))"
    host.run([sys.executable, "-c", code, str(host.library / "libnvidia-ml.so.1"), EMPTY])
    assert not host.module("gpu_info")["gpus"]


def test_gpu_missing_in_the_driver_is_named(host, command, tmp_path):
    text = "the GPU at %s is missing" % MISSING
    assert "the GPU at %s  missing: " % MISSING in command("show").stdout
    exported = command("export", "--json")
    assert [entry["gpus"] for entry in json.loads(exported.stdout)["gpu_layout"]] == [[0, 1]]
    assert text in exported.stderr
    layout = tmp_path / "layout.json"
    for gpus, status in (([0], 0), ("all", 1), ([2], 1), ([MISSING], 1)):
        layout.write_text(json.dumps([{"gpus": gpus, "sharing": "exclusive"}]))
        planned = command("plan", "--layout", str(layout))
        assert planned.returncode == status and text in planned.stderr, planned
    layout.write_text(json.dumps([{"gpus": "all", "sharing": "exclusive"}]))
    done = command("apply", "--layout", str(layout), "--lost", "skip")
    assert done.returncode == 0 and text in done.stderr, done
    assert [gpu["compute_mode"] for gpu in host.module("gpu_info")["gpus"]] == ["exclusive_process"] * 2


def test_driver_without_gpus_differs_from_a_host_without_gpus(host, bus, command, tmp_path):
    lose_all(host)
    addresses = sorted(path.name for path in bus.iterdir())
    exported = command("export")
    assert exported.returncode == 1 and "gpu_layout" not in exported.stdout, exported
    assert all(address in exported.stderr for address in addresses), exported.stderr
    layout = tmp_path / "layout.json"
    layout.write_text("[]")
    for words in (("show",), ("plan", "--layout", str(layout))):
        done = command(*words)
        assert done.returncode == 0 and all(address in done.stdout + done.stderr for address in addresses), done


TOO_OLD = (
    "The driver 550.54.15 is older than 570.133.20, which B200-180GB needs "
    "(NVIDIA MIG User Guide 620, Deployment Considerations)"
)
FIX = "Install the driver 570.133.20 or later (nvidia_driver_version)."


@pytest.fixture(name="newer")
def of_a_newer_gpu(host, bus):
    """Return a PCI bus whose missing GPU is too new for the driver."""
    host.gpusim("set", "driver_version", "550.54.15")
    (bus / MISSING / "device").write_text("0x2901\n")
    return bus


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_command_names_the_minimum_driver_of_a_missing_gpu(newer, command, tmp_path, lost):
    assert TOO_OLD in command("show").stdout
    assert TOO_OLD in command("export", "--json").stderr
    layout = tmp_path / "layout.json"
    layout.write_text(json.dumps([{"gpus": "all", "sharing": "exclusive"}]))
    planned = command("plan", "--layout", str(layout), "--lost", lost)
    assert TOO_OLD in planned.stderr, planned
    assert planned.returncode == int(lost == "fail") and (FIX in planned.stderr) == (lost == "fail"), planned


@pytest.mark.parametrize("module", ["gpu_info", "layout", "mig", "layout_export"])
def test_modules_name_the_minimum_driver_of_a_missing_gpu(host, newer, module):
    arguments = {"_ansible_check_mode": True}
    if module in ("layout", "mig"):
        arguments.update(layout=[{"gpus": "all", "sharing": "shared"}], state_directory=str(host.folder / "state.d"))
    code = "ansible_collections.openfleet.gpu.plugins.modules." + module
    words = ["unshare", "--mount", "sh", "-c", MOUNT, str(newer), host.python, "-m", code]
    done = host.run(words, check=False, input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    assert TOO_OLD in done.stdout, done
    assert (FIX in done.stdout) == (module in ("layout", "mig")), done
