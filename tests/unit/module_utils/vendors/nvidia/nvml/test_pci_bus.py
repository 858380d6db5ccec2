# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find PCI GPUs that the driver should list, and the names of missing GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.model import LostGpu
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import pci, session
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.calls import lost_error

ADDRESSES = ["0000:17:00.0", "0000:2a:00.0", "0000:3d:00.0"]
GPUS = [
    dataclasses.replace(gpu, pci_address=address) for gpu, address in zip(assumed_gpus(["H100-80GB"] * 3), ADDRESSES)
]


@pytest.fixture(name="bus")
def of_sysfs(tmp_path):
    """Return a function that adds a PCI device to a folder.

    The folder has the format of /sys/bus/pci/devices. The function returns the folder.
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
    monkeypatch.setattr(pci, "DEVICES", folder)
    return folder


def with_bus(gpus, lost, simulated=False, driver="580.105.08"):
    return session.with_bus(gpus, lost, simulated, driver)


def test_uncounted_gpu_is_missing(whole):
    (missing,) = with_bus(GPUS[:2], [])
    assert str(missing) == ("the GPU at 0000:3d:00.0 is missing: it is on the PCI bus, but missing in the driver")
    assert with_bus(GPUS, []) == ()
    assert [gpu.pci_address for gpu in with_bus([], [])] == ADDRESSES


def test_single_gpu_without_address_gets_the_remaining_one(whole, monkeypatch, tmp_path):
    (tmp_path / "information").write_text("Model: \t H100\nGPU UUID: \t GPU-12345678-0000-0000-0000-000000000000\n")
    monkeypatch.setattr(pci, "_INFORMATION", str(tmp_path / "information") + "%.0s")
    sick = LostGpu(1, "Unknown Error", code=999)
    (found,) = with_bus([GPUS[0], GPUS[2]], [sick])
    assert (found.index, found.pci_address) == (1, ADDRESSES[1])
    assert found.uuid == "GPU-12345678-0000-0000-0000-000000000000"
    others = [sick, LostGpu(2, "Unknown Error", code=999)]
    assert with_bus(GPUS[:1], others) == tuple(others), "which one is where cannot be known"


def test_pci_bus_is_not_used_for_simulated_gpus(whole):
    assert with_bus([], [], simulated=True) == ()


@pytest.mark.parametrize(
    ("device_id", "driver", "text", "fix"),
    [
        ("0x2901", "550.54.15", "older than 570.133.20, which B200-180GB needs (NVIDIA MIG User Guide", "570.133.20"),
        ("0x2901", "570.86.15", "older than 570.133.20, which B200-180GB needs (NVIDIA MIG User Guide", "570.133.20"),
        (
            "0x26b9",
            "525.147.05",
            "older than branch 535, which L40S-48GB needs (README of NVIDIA/open-gpu",
            "branch 535",
        ),
        ("0x232c", "550.54.15", "older than 570.86.15, which H20-141GB needs (not confirmed)", "570.86.15"),
        ("0x2901", "570.133.20", None, None),
        ("0x26b9", "535.54.03", None, None),
        ("0x2fff", "550.54.15", None, None),
        ("", "550.54.15", None, None),
    ],
)
def test_driver_that_is_too_old_for_a_missing_gpu_is_named(whole, tmp_path, device_id, driver, text, fix):
    (tmp_path / "devices" / ADDRESSES[2] / "device").write_text(device_id + "\n")
    (missing,) = with_bus(GPUS[:2], [], driver=driver)
    error = lost_error("this host", [missing])
    assert missing.problem.startswith("it is on the PCI bus, but missing in the driver")
    if text is None:
        assert "older" not in missing.problem and "nvidia_driver_version" not in error.cure
    else:
        assert "The driver %s is %s" % (driver, text) in missing.problem
        assert error.cure.startswith("Install the driver %s or later (nvidia_driver_version)." % fix)


def expected_minimum(model, board):
    """Return the row of a board's model file, as `minimum_driver` returns it."""
    (source,) = [text for text in model.sources if "minimum driver version" in text] or [""]
    if board.minimum_driver is None and "minimum_driver" in model.unconfirmed:
        name = "not confirmed"
    elif board.minimum_driver is None and source.startswith("NVIDIA MIG User Guide 620, Deployment Considerations"):
        name = "NVIDIA MIG User Guide 620, Deployment Considerations"
    else:
        assert "NVIDIA/open-gpu-kernel-modules" in source
        name = "README of NVIDIA/open-gpu-kernel-modules, Compatible GPUs"
    return model.key, board.minimum_driver or model.minimum_driver, name


def test_minimum_drivers_are_those_of_the_model_files():
    for model in load_models().values():
        for board in model.boards:
            minimum = board.minimum_driver or model.minimum_driver
            is_old = minimum is None or int(minimum.split(".")[0]) <= 470
            expected = None if is_old else expected_minimum(model, board)
            assert pci.minimum_driver(board.pci_device_id) == expected
