# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide the simulated NVML, built once, and hosts that src/gpusim.h creates."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.simulated_host import copy_library

# MIG profiles of an A100-SXM4-40GB, an H100 80GB HBM3 and an RTX PRO 6000, from the MIG User Guide and nvidia-smi's
# recorded output. Columns: enum, profile id, name, slices, MiB, SMs, maximum instances, copy engines, decoders,
# encoders, jpeg, ofa, placements.
A100_PROFILES = """
0 19 1g.5gb    1  4864 14 7 1 0 0 0 0 0:1 1:1 2:1 3:1 4:1 5:1 6:1
7 20 1g.5gb+me 1  4864 14 1 1 1 0 1 1 0:1 1:1 2:1 3:1 4:1 5:1 6:1
9 15 1g.10gb   1  9856 14 4 1 1 0 0 0 0:2 2:2 4:2 6:2
1 14 2g.10gb   2  9856 28 3 2 1 0 0 0 0:2 2:2 4:2
2  9 3g.20gb   3 19968 42 2 3 2 0 0 0 0:4 4:4
3  5 4g.20gb   4 19968 56 1 4 2 0 0 0 0:4
4  0 7g.40gb   7 40192 98 1 7 5 0 1 1 0:8
"""
H100_PROFILES = """
0 19 1g.10gb    1  9984  16 7 1 1 0 1 0 0:1 1:1 2:1 3:1 4:1 5:1 6:1
7 20 1g.10gb+me 1  9984  16 1 1 1 0 1 1 0:1 1:1 2:1 3:1 4:1 5:1 6:1
9 15 1g.20gb    1 20096  26 4 1 1 0 1 0 0:2 2:2 4:2 6:2
1 14 2g.20gb    2 20096  32 3 2 2 0 2 0 0:2 2:2 4:2
2  9 3g.40gb    3 40448  60 2 3 3 0 3 0 0:4 4:4
3  5 4g.40gb    4 40448  64 1 4 4 0 4 0 0:4
4  0 7g.80gb    7 81152 132 1 8 7 0 7 1 0:8
"""
PRO6000_PROFILES = """
0  14 1g.24gb        1 24192  46 4 1 1 1 1 0 0:3 3:3 6:3 9:3
15 65 1g.24gb+me.all 1 24192  46 1 1 4 4 4 1 0:3 3:3 6:3 9:3
13 67 1g.24gb-me     1 24192  46 4 1 0 0 0 0 0:3 3:3 6:3 9:3
1   5 2g.48gb        2 48512  94 2 2 2 2 2 0 0:6 6:6
3   0 4g.96gb        4 97408 188 1 4 4 4 4 1 0:12
"""
# Columns: gi_slices, enum, id, slices, placements.
COMPUTE_PROFILES = """
1 0 0 1 0:1
2 0 0 1 0:1 1:1
2 1 1 2 0:2
3 0 0 1 0:1 1:1 2:1
3 1 1 2 0:2
3 2 2 3 0:3
4 0 0 1 0:1 1:1 2:1 3:1
4 1 1 2 0:2 2:2
4 3 3 4 0:4
7 0 0 1 0:1 1:1 2:1 3:1 4:1 5:1 6:1
7 4 4 7 0:7
"""
KEYS = "enum id name compute_slices memory_mib multiprocessors max_instances copy_engines decoders encoders jpeg ofa placements"
COMPUTE_KEYS = "gi_slices enum id slices placements"

# Each model's values that the tests read, as keys of the configuration.
MODELS = {
    "a100": (
        A100_PROFILES,
        "name=NVIDIA A100-SXM4-40GB, architecture=7, compute_capability=8.0, pci_device_id=0x20B010DE, memory_total_mib=40960, "
        "multiprocessors=108, power_default_mw=400000, power_min_mw=100000, power_max_mw=400000, "
        "mig_capable=1, mig_needs_reset=1, compute_slices=7, placement_units=8",
    ),
    "h100": (
        H100_PROFILES,
        "name=NVIDIA H100 80GB HBM3, architecture=9, compute_capability=9.0, pci_device_id=0x233010DE, memory_total_mib=81559, "
        "memory_reserved_mib=551, multiprocessors=132, power_default_mw=700000, power_min_mw=200000, power_max_mw=700000, "
        "mig_capable=1, compute_slices=7, placement_units=8, nvlink_links=18, nvlink_version=4",
    ),
    "pro6000": (
        PRO6000_PROFILES,
        "name=NVIDIA RTX PRO 6000 Blackwell Server Edition, architecture=10, compute_capability=12.0, pci_device_id=0x2BB510DE, "
        "memory_total_mib=97887, multiprocessors=188, power_default_mw=600000, power_min_mw=300000, power_max_mw=600000, "
        "mig_capable=1, compute_slices=4, placement_units=12",
    ),
    "l40s": (
        "",
        "name=NVIDIA L40S, architecture=8, compute_capability=8.9, pci_device_id=0x26B910DE, memory_total_mib=46068, "
        "multiprocessors=142, power_default_mw=350000, power_min_mw=100000, power_max_mw=350000",
    ),
}
EVERY_GPU = "clock_graphics_max_mhz=1980, clock_memory_max_mhz=2619, pcie_generation=5, pcie_width=16"


def keys_of(text: str) -> dict[str, object]:
    return dict(pair.split("=") for pair in text.split(", "))


def configuration(*models: str, **overrides: object) -> str:
    """Return a host's configuration with these GPUs.

    `overrides` sets keys of every GPU. The value None removes a key.
    """
    lines = ["host", "driver_version 580.65.06", "cuda_version 13000"]
    for index, model in enumerate(models):
        profiles, figures = MODELS[model]
        gpu = {**keys_of(EVERY_GPU), **keys_of(figures)}
        gpu["uuid"] = f"GPU-00000000-0000-0000-0000-{index:012}"
        gpu["serial"] = f"165{index}"
        gpu["pci_address"] = f"00000000:{index + 16:02X}:00.0"
        gpu["numa_node"] = index % 2
        if "nvlink_links" in gpu and len(models) > 1:
            gpu["nvlink_peers"] = " ".join(str(peer) for peer in range(len(models)) if peer != index)
        gpu.update(overrides)
        lines += ["gpu", *(f"{key} {value}" for key, value in gpu.items() if value is not None)]
        for section, keys, table in (("profile", KEYS, profiles), ("compute_profile", COMPUTE_KEYS, COMPUTE_PROFILES)):
            names = keys.split()
            for row in table.strip().splitlines() if profiles else ():
                lines += [section, *map(" ".join, zip(names, row.split(None, len(names) - 1)))]
    return "\n".join(lines) + "\n"


class Simulator:
    """A simulated host that this process and its children use."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.path, self.state = library, folder / "state"
        self.library = ctypes.CDLL(str(library))
        self.library.gpusimMessage.restype = self.library.gpusimVersion.restype = ctypes.c_char_p
        self.children: list[subprocess.Popen] = []

    def call(self, function: str, *arguments: object) -> int:
        """Call a control function, and return its return code."""
        texts = [a.encode() if isinstance(a, str) else a for a in arguments]
        return getattr(self.library, function)(*texts)

    def message(self) -> str:
        return self.library.gpusimMessage().decode()

    def do(self, function: str, *arguments: object) -> None:
        assert self.call(function, *arguments) == 0, self.message()

    def create(self, *models: str, **overrides: object) -> Simulator:
        self.do("gpusimCreate", configuration(*models, **overrides))
        return self

    def dump(self) -> dict:
        size = ctypes.c_size_t(0)
        while True:
            buffer = ctypes.create_string_buffer(size.value)
            code = self.library.gpusimDump(buffer, ctypes.byref(size))
            if code != 7:
                assert code == 0, self.message()
                return json.loads(buffer.value)

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ, GPUSIM_STATE=str(self.state), LD_LIBRARY_PATH=str(self.path.parent))

    def python(self, code: str, user: int | None = None, prefix: tuple[str, ...] = ()) -> subprocess.Popen:
        """Start a separate client that runs `code`.

        The client first initializes NVML, and stores the first GPU in `gpu`.
        """
        import pynvml

        # The interpreter starts as this user. If the checkout is private, another user cannot read it.
        become = "" if user is None else f"os.setgroups([]); os.setgid({user}); os.setuid({user}); "
        script = (
            f"import os, time; from pynvml import *; {become}nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)\n" + code
        )
        environment = dict(self.environment, PYTHONPATH=str(Path(pynvml.__file__).parent), PYTHONDONTWRITEBYTECODE="1")
        child = subprocess.Popen(
            [*prefix, sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
        )
        self.children.append(child)
        return child

    def idle_process(self) -> subprocess.Popen:
        """Start a process that tests can attach to a GPU."""
        child = subprocess.Popen(["sleep", "300"])
        self.children.append(child)
        return child


@pytest.fixture(scope="session")
def nvml_library():
    """Return the built library in a folder that every user can read."""
    with tempfile.TemporaryDirectory(prefix="gpusim-") as folder:
        Path(folder).chmod(0o755)
        copy_library(Path(folder))
        yield Path(folder) / "libnvidia-ml.so.1"


@pytest.fixture
def simulator(nvml_library, monkeypatch):
    """Return a host without GPUs.

    Call `create` to add them.
    """
    with tempfile.TemporaryDirectory(prefix="gpusim-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("GPUSIM_STATE", f"{folder}/state")
        one = Simulator(nvml_library, Path(folder))
        yield one
        for child in one.children:
            child.kill()
            child.wait()
            if child.stdout:
                child.stdout.close()


@pytest.fixture
def nvml(simulator, monkeypatch):
    """Return pynvml on the simulated library.

    Call nvmlInit after `create`.
    """
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlLib", simulator.library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield pynvml
    while simulator.library.nvmlShutdown() == 0:
        pass
