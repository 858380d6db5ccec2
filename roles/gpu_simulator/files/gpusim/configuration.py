# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a host's JSON configuration for gpusimCreate (src/gpusim.h).

    {"host": "gpu-17", "driver_version": "580.105.08", "cuda_version": "13.0",
     "gpus": [{"model": "H100-80GB", "count": 8}]}

Only `gpus` is required. The module derives UUIDs and serial numbers from `host` and the GPU's index. They therefore
stay the same across installations, and differ between hosts.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import uuid
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

from .catalogue import MOST_SIMULATED_GPUS, Model, Profile
from .errors import FleetError
from .model_readings import CORES

DEFAULT_DRIVER_VERSION = "580.105.08"

# Each driver branch's CUDA version, as nvidia-smi prints it.
CUDA_VERSIONS = {470: "11.4", 525: "12.0", 535: "12.2", 550: "12.4", 570: "12.8", 580: "13.0", 595: "13.2"}

# nvml.h: nvmlBrandType_t and NVML_DEVICE_ARCH_*.
NVML_BRANDS = {"NVIDIA": 14, "NVIDIA RTX": 12}
# nvml.h: nvmlNvlinkVersion_t by architecture.
NVLINK_VERSIONS = {"Volta": 2, "Ampere": 4, "Hopper": 6, "Blackwell": 7}
NVML_ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada": 8, "Hopper": 9, "Blackwell": 10}

GPUS_PER_PCI_DOMAIN = 16
FIRST_PCI_BUS, PCI_BUS_STEP = 0x1A, 0x0E
NVIDIA_PCI_VENDOR = 0x10DE

# Number of modules on one board. Their numbers start at 1.
MODULES_PER_BOARD = 8

# From this branch on, cards without a module report 1 (nvidia-smi -q of A10, L4 and T4). Branches 470 and 515 report 0.
FIRST_DRIVER_THAT_NUMBERS_CARDS = 535

# Up to this number of GPUs, NVLinks connect GPUs directly, as on HGX boards. With more GPUs, NVLinks lead to
# NVSwitches.
DIRECTLY_WIRED_GPUS = 4

# The last known driver branch that answers profile queries only while MIG mode is on.
LAST_DRIVER_WITHOUT_EARLY_PROFILES = 535

_IDENTITY = uuid.UUID("6e5bb0c2-3f5e-4d0c-9a35-6f1f0e6f2a11")


class ConfigurationError(FleetError):
    """A configuration that is malformed."""


def read(path: str) -> dict[str, Any]:
    """Return the configuration file's checked content. `-` is standard input."""
    name = "standard input" if path == "-" else path
    try:
        data = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(name, f"cannot be read: {error.strerror}", "Name a readable file") from error
    except ValueError as error:
        raise ConfigurationError(name, f"not JSON: {error}", "Fix the file") from error
    return check(data, name)


def check(data: Any, where: str) -> dict[str, Any]:
    """Return the configuration, completed with default values.

    Raise ConfigurationError, which names the wrong field.
    """

    def fail(field: str, problem: str, cure: str) -> None:
        raise ConfigurationError(f"{where}: {field}" if field else where, problem, cure)

    if not isinstance(data, dict):
        fail("", "is not an object", 'Write {"gpus": [{"model": "H100-80GB", "count": 8}]}')
    unknown = set(data) - {"host", "driver_version", "cuda_version", "gpus"}
    if unknown:
        fail(min(unknown), "is not a field of the configuration", "Use host, driver_version, cuda_version, gpus")
    gpus = data.get("gpus")
    if not isinstance(gpus, list) or not gpus:
        fail("gpus", "is not a list of GPUs", 'Write [{"model": "H100-80GB", "count": 8}]')
    for i, entry in enumerate(gpus):
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str) or set(entry) - {"model", "count"}:
            fail(f"gpus[{i}]", f"is {json.dumps(entry)}", 'Write {"model": "H100-80GB", "count": 8}')
        count = entry.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            fail(f"gpus[{i}].count", f"is {json.dumps(count)}", "Give a whole number from 1")
    if sum(entry.get("count", 1) for entry in gpus) > MOST_SIMULATED_GPUS:
        fail("gpus", "are more than a simulated host can have", f"Give at most {MOST_SIMULATED_GPUS}")
    for field in ("host", "driver_version", "cuda_version"):
        if field in data and not (isinstance(data[field], str) and data[field].strip()):
            fail(field, f"is {json.dumps(data[field])}", "Give a text, in quotes")
    result = {"host": socket.gethostname(), "driver_version": DEFAULT_DRIVER_VERSION, **data}
    for field in ("driver_version", "cuda_version"):
        if not all(part.isdigit() for part in result.get(field, "0").split(".")):
            fail(field, f"{result[field]} is not a version", "Give numbers and dots, 580.105.08")
    result.setdefault("cuda_version", _cuda_version(result["driver_version"]))
    return result


def to_text(configuration: dict[str, Any], models: dict[str, Model]) -> str:
    """Return the text for gpusimCreate.

    Its `digest` line changes if and only if another line changes.
    """
    body = list(_gpus(configuration, models))
    host = [
        "host",
        f"driver_version {configuration['driver_version']}",
        f"cuda_version {cuda_number(configuration['cuda_version'])}",
    ]
    digest = hashlib.sha256("\n".join(host + body).encode()).hexdigest()
    return "\n".join([*host, f"digest {digest}", *body]) + "\n"


def digest_of(text: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith("digest "))


def _gpus(configuration: dict[str, Any], models: dict[str, Model]) -> Iterator[str]:
    by_key = {key.lower(): model for key, model in models.items()}
    selected: list[Model] = []
    for i, entry in enumerate(configuration["gpus"]):
        model = by_key.get(entry["model"].lower())
        if model is None:
            cure = f"The catalogue has {', '.join(models)}"
            raise ConfigurationError(f"gpus[{i}].model", f"{entry['model']} is not in the catalogue", cure)
        selected += [model] * entry.get("count", 1)
    keys = [model.key for model in selected]
    branch = int(configuration["driver_version"].split(".")[0])
    early_profiles = branch > LAST_DRIVER_WITHOUT_EARLY_PROFILES
    for index, model in enumerate(selected):
        siblings = [i for i, key in enumerate(keys) if key == model.key]
        bus = FIRST_PCI_BUS + PCI_BUS_STEP * (index % GPUS_PER_PCI_DOMAIN)
        identity = uuid.uuid5(_IDENTITY, f"{configuration['host']}/{index}")
        yield "gpu"
        yield f"uuid GPU-{identity}"
        yield f"serial {1_650_000_000_000 + identity.int % 10_000_000_000}"
        yield f"pci_address {index // GPUS_PER_PCI_DOMAIN:08X}:{bus:02X}:00.0"
        yield f"board_id {bus << 8}"
        # Two sockets, each with half of the GPUs.
        yield f"numa_node {index * 2 // len(selected)}"
        yield f"profiles_without_mig {int(early_profiles)}"
        yield from _pairs(_nvlink(model, index, siblings))
        yield f"module_id {_module_id(model, siblings.index(index), branch)}"
        yield from _model(model)


def _module_id(model: Model, position: int, branch: int) -> int:
    """Return the number of a GPU's module.

    On real boards the order differs from NVML's order, and between boards.
    """
    if model.on_module:
        return position % MODULES_PER_BOARD + 1
    return int(branch >= FIRST_DRIVER_THAT_NUMBERS_CARDS)


def _model(model: Model) -> Iterator[str]:
    power, module = _milliwatts(model.power_watts), _milliwatts(model.module_power_watts)
    yield from _pairs(
        {
            "name": model.name,
            "model": model.key,
            "brand": NVML_BRANDS[model.brand],
            "architecture": NVML_ARCHITECTURES[model.architecture],
            "compute_capability": model.compute_capability,
            "pci_device_id": int(model.boards[0].pci_device_id, 16) << 16 | NVIDIA_PCI_VENDOR,
            "pci_subsystem_id": model.pci_subsystem_id and int(model.pci_subsystem_id, 16) << 16 | NVIDIA_PCI_VENDOR,
            "vbios_version": model.vbios_version,
            "board_part_number": model.board_part_number,
            "gpu_part_number": model.gpu_part_number,
            **{f"inforom_{name}": version for name, version in model.inforom.items()},
            "multiprocessors": model.multiprocessors,
            "cores_per_multiprocessor": CORES.get(model.compute_capability),
            "memory_total_mib": model.memory_total_mib,
            "memory_reserved_mib": model.reserved_mib(),
            "bar1_total_mib": model.bar1_mib(),
            "memory_bus_width_bits": model.memory_bus_width_bits,
            "row_remapper_banks": model.row_remapper_banks,
            "power_default_mw": power["default"],
            # The library needs a range. models/README.md explains why the minimum is half of the default power.
            "power_min_mw": power["default"] // 2 if power["min"] is None else power["min"],
            "power_max_mw": power["max"],
            "power_idle_mw": power["idle"],
            "power_memory_mw": model.memory_power_watts and model.memory_power_watts * 1000,
            **{f"power_module_{name}_mw": milliwatts for name, milliwatts in module.items()},
            "clock_graphics_max_mhz": model.clocks_mhz["graphics"],
            "clock_memory_max_mhz": model.clocks_mhz["memory"],
            "clock_video_max_mhz": model.clocks_mhz["video"],
            "clock_graphics_idle_mhz": model.idle_clocks_mhz["graphics"],
            "clock_memory_idle_mhz": model.idle_clocks_mhz["memory"],
            "clock_video_idle_mhz": model.idle_clocks_mhz["video"],
            "clock_graphics_application_mhz": model.application_clock_mhz,
            "supported_clocks": _clocks(model),
            "performance_state_idle": model.idle_performance_state,
            "temperature_idle_c": model.temperatures_celsius["idle"],
            "temperature_max_c": model.temperatures_celsius["max_operating"],
            "temperature_slowdown_c": model.temperatures_celsius["slowdown"],
            "temperature_shutdown_c": model.temperatures_celsius["shutdown"],
            "temperature_margins": int(model.temperature_margins),
            "temperature_memory_idle_c": model.memory_temperatures_celsius["idle"],
            "temperature_memory_max_c": model.memory_temperatures_celsius["max"],
            "fan_idle_percent": model.idle_fan_percent,
            "pcie_generation": model.pcie["generation"],
            "pcie_width": model.pcie["width"],
        }
    )
    if not model.mig_capable:
        return
    yield from _pairs(
        {
            "mig_capable": 1,
            "mig_needs_reset": int(model.mig_needs_reset),
            "compute_slices": model.compute_slices,
            "placement_units": model.placement_units,
            "max_mig_devices": model.max_gpu_instances,
        }
    )
    for profile in model.profiles:
        yield from _profile(model, profile)
    for slices, profiles in model.compute_instance_profiles.items():
        for inner in profiles:
            yield "compute_profile"
            yield from _pairs(
                {
                    "gi_slices": slices,
                    "enum": inner.nvml_profile,
                    "id": inner.profile_id,
                    "slices": inner.compute_slices,
                    "max_instances": inner.max_instances,
                    "placements": " ".join(f"{p.start}:{p.size}" for p in inner.placements),
                }
            )


def _clocks(model: Model) -> str | None:
    ranges = [f"{clock.memory}:{clock.graphics[0]}-{clock.graphics[1]}" for clock in model.supported_clocks_mhz]
    return " ".join(ranges) or None


def _milliwatts(watts: Mapping[str, int | None]) -> dict[str, int | None]:
    return {name: None if value is None else value * 1000 for name, value in watts.items()}


def _profile(model: Model, profile: Profile) -> Iterator[str]:
    yield "profile"
    yield from _pairs(
        {
            "enum": profile.nvml_profile,
            "id": profile.profile_id,
            "name": profile.name,
            "compute_slices": profile.compute_slices,
            "memory_mib": model.profile_memory_mib(profile),
            "multiprocessors": profile.multiprocessors,
            "max_instances": profile.max_instances,
            "copy_engines": profile.copy_engines,
            "decoders": profile.decoders,
            "encoders": profile.encoders,
            "jpeg": profile.jpeg_engines,
            "ofa": profile.ofa_engines,
            "graphics": int(profile.attribute == "+gfx"),
            "placements": " ".join(f"{p.start}:{p.size}" for p in profile.placements),
        }
    )


def _nvlink(model: Model, index: int, siblings: list[int]) -> dict[str, Any]:
    """Return a GPU's links.

    With few GPUs, the function divides the links evenly between the other GPUs of the same model. Otherwise all links
    lead to switches.
    """
    peers = [i for i in siblings if i != index]
    links = {
        "nvlink_links": model.nvlink_links,
        "nvlink_version": NVLINK_VERSIONS.get(model.architecture) if model.nvlink_links else None,
        "nvlink_speed_mbps": model.nvlink_mb_per_second,
        "c2c_links": model.c2c_links,
        "c2c_speed_mbps": model.c2c_mb_per_second,
    }
    if not model.nvlink_links or not peers:
        return links
    if len(siblings) > DIRECTLY_WIRED_GPUS:
        ends: list[Any] = ["switch"] * model.nvlink_links
    else:
        ends = [peer for peer in peers for _unused in range(model.nvlink_links // len(peers))]
    return {**links, "nvlink_peers": " ".join(map(str, ends))}


def _pairs(values: dict[str, Any]) -> Iterable[str]:
    """Yield lines `key value`.

    The function omits keys with None, so the library treats their values as unknown.
    """
    return [f"{key} {value}" for key, value in values.items() if value is not None]


def _cuda_version(driver_version: str) -> str:
    branch = int(driver_version.split(".")[0])
    older = [number for number in CUDA_VERSIONS if number <= branch]
    return CUDA_VERSIONS[max(older or CUDA_VERSIONS)]


def cuda_number(version: str) -> int:
    """Return a version in NVML's number format, for example 13000 for 13.0."""
    major, minor = ([int(part) for part in version.split(".")] + [0])[:2]
    return 1000 * major + 10 * minor
