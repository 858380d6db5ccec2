# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs of the PCI bus that the driver should list, and the names of missing ones."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.model import LostGpu
from ansible_collections.openfleet.gpu.plugins.module_utils.nvml import pci

ADDRESSES = ["0000:17:00.0", "0000:2a:00.0", "0000:3d:00.0"]
GPUS = [
    dataclasses.replace(gpu, pci_address=address) for gpu, address in zip(assumed_gpus(["H100-80GB"] * 3), ADDRESSES)
]


@pytest.fixture(name="bus")
def of_sysfs(tmp_path):
    """Return a function that adds a PCI device to a folder, and returns the folder.

    The folder has the format of /sys/bus/pci/devices.
    """
    folder = tmp_path / "devices"
    folder.mkdir()

    def add(address, driver="nvidia", vendor="0x10de", kind="0x030200", **files):
        device = folder / address
        device.mkdir()
        for name, text in {"vendor": vendor, "class": kind, "device": "0x2330", **files}.items():
            (device / name).write_text(text + "\n")
        if driver:
            (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(tmp_path / "drivers" / driver)
        return str(folder)

    return add


@pytest.mark.parametrize(
    ("device", "counts"),
    [
        ({}, True),
        ({"driver": ""}, True),
        ({"driver": "", "kind": "0x030000", "boot_vga": "0"}, True),
        ({"driver": "", "kind": "0x030000", "boot_vga": "1"}, False),
        ({"driver": "nvidia", "kind": "0x030000", "boot_vga": "1"}, True),
        ({"driver": "vfio-pci"}, False),
        ({"driver": "nouveau"}, False),
        ({"physfn": ""}, False),
        ({"kind": "0x040300"}, False),
        ({"vendor": "0x1002"}, False),
    ],
    ids=lambda value: " ".join("%s=%s" % item for item in value.items()) if isinstance(value, dict) else None,
)
def test_only_gpus_for_the_driver_are_expected(bus, device, counts):
    assert pci.expected_gpus(bus(ADDRESSES[0], **device)) == ([ADDRESSES[0]] if counts else [])


@pytest.fixture(name="whole")
def of_three_gpus(bus, monkeypatch, tmp_path):
    for address in ADDRESSES:
        folder = bus(address)
    monkeypatch.setattr(pci, "expected_gpus", lambda: [path.name for path in sorted(tmp_path.glob("devices/*"))])
    return folder


def test_uncounted_gpu_is_missing(whole):
    (missing,) = pci.with_bus(GPUS[:2], [], simulated=False)
    assert str(missing) == ("the GPU at 0000:3d:00.0 is missing: it is on the PCI bus, but missing in the driver")
    assert pci.with_bus(GPUS, [], simulated=False) == ()
    assert [gpu.pci_address for gpu in pci.with_bus([], [], simulated=False)] == ADDRESSES


def test_single_gpu_without_address_gets_the_remaining_one(whole, monkeypatch, tmp_path):
    (tmp_path / "information").write_text("Model: \t H100\nGPU UUID: \t GPU-12345678-0000-0000-0000-000000000000\n")
    monkeypatch.setattr(pci, "_INFORMATION", str(tmp_path / "information") + "%.0s")
    sick = LostGpu(1, "Unknown Error", code=999)
    (found,) = pci.with_bus([GPUS[0], GPUS[2]], [sick], simulated=False)
    assert (found.index, found.pci_address) == (1, ADDRESSES[1])
    assert found.uuid == "GPU-12345678-0000-0000-0000-000000000000"
    others = [sick, LostGpu(2, "Unknown Error", code=999)]
    assert pci.with_bus(GPUS[:1], others, simulated=False) == tuple(others), "which one is where cannot be known"


def test_pci_bus_is_not_used_for_simulated_gpus(whole):
    assert pci.with_bus([], [], simulated=True) == ()
