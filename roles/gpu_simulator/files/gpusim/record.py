# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create a model file from a card's readings (gpu-check.json).

Model files are in plugins/module_utils/models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .catalogue import Model, parse_model
from .errors import FleetError
from .model_readings import Field, Readings, fields_of, profile_names, with_parameters

# NVML_COMPUTE_INSTANCE_PROFILE_* of nvml.h, by the number of compute slices.
_COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
_MAPPINGS = {
    "power_watts": ("default", "min", "max", "idle"),
    "module_power_watts": ("default", "min", "max", "idle"),
    "clocks_mhz": ("graphics", "sm", "memory", "video"),
    "idle_clocks_mhz": ("graphics", "memory", "video"),
    "temperatures_celsius": ("idle", "max_operating", "slowdown", "shutdown"),
    "memory_temperatures_celsius": ("idle", "max"),
    "pcie": ("generation", "width"),
    "inforom": ("image", "oem", "ecc", "power"),
}
# Fields in a model file's order. record writes their values as the card reported them.
_FIELDS = (
    "pci_subsystem_id", "brand", "architecture", "compute_capability", "multiprocessors", "memory_total_mib",
    "memory_reserved_mib", "bar1_total_mib", "memory_bus_width_bits", "row_remapper_banks", "power_watts", "memory_power_watts",
    "module_power_watts", "clocks_mhz", "idle_clocks_mhz", "supported_clocks_mhz", "idle_performance_state",
    "application_clock_mhz", "temperatures_celsius", "memory_temperatures_celsius", "temperature_margins",
    "idle_fan_percent", "pcie", "nvlink_links", "nvlink_mb_per_second", "c2c_links", "c2c_mb_per_second", "vbios_version",
    "board_part_number", "gpu_part_number", "inforom", "on_module", "mig_capable", "mig_needs_reset",
    "compute_slices", "placement_units", "max_gpu_instances",
)  # fmt: skip
# A profile's lines in a model file.
_PROFILE_LINES = (
    ("nvml_profile", "profile_id", "compute_slices", "memory_mib", "multiprocessors"),
    ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"),
    ("max_instances", "placement_size", "placement_starts"),
)


def read_report(path: str, gpu: int) -> tuple[Readings, str]:
    """Return one GPU's readings from a gpu-check.json, and their source as text.

    Raise FleetError if it cannot read them.
    """
    cure = "Use a gpu-check.json of make check-gpu"
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        reading = report["readings"]
        checked = next(one for one in reading["nvml"]["gpus"] if one["index"] == gpu)
        calls = with_parameters(checked["calls"], reading["files"])
        source = "NVML of driver %s, read on %s by make check-gpu" % (
            report["driver_version"],
            report["made"].split()[0],
        )
        shown = [
            one
            for one in reading["nvidia_smi"].get("gpus") or ()
            if one["uuid"] == Readings(calls).value("nvmlDeviceGetUUID")
        ]
        # A report may contain placeholders instead of UUIDs. These are unique too.
        for one in shown[:1]:
            number = one.get("gpu_part_number") or "N/A"
            calls.append({"call": "nvidia-smi", "of": "gpu_part_number", "value": None if "N/A" in number else number})
    except OSError as error:
        raise FleetError(path, f"cannot be read: {error.strerror}", cure) from error
    except StopIteration:
        raise FleetError(path, f"has no GPU {gpu}", "Select one of its GPUs with --gpu") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FleetError(path, f"is not a check report: {error!r}", cure) from error
    if checked["problem"]:
        raise FleetError(f"{path}: GPU {gpu}", checked["problem"], "Check the card again when it responds")
    return Readings(calls), source


def model_text(key: str, readings: Readings, source: str, models: dict[str, Model]) -> str:
    """Return the model file's text.

    Raise FleetError if the catalogue cannot read the file.
    """
    fields = fields_of(readings)
    unconfirmed: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name in _FIELDS:
        if name in _MAPPINGS:
            values[name] = {part: _value(fields, f"{name}.{part}", name, part, unconfirmed) for part in _MAPPINGS[name]}
        else:
            values[name] = _value(fields, name, name, name, unconfirmed)
    profiles = _profiles(fields) if values["mig_capable"] else []
    if values["multiprocessors"] is None and profiles:
        values["multiprocessors"] = max(profile["multiprocessors"] for profile in profiles)
        unconfirmed["multiprocessors"] = "those of the largest profile: the whole GPU may have more"
    if values["supported_clocks_mhz"] is None:
        values["supported_clocks_mhz"] = []
    if values["nvlink_links"] is None:
        values["nvlink_links"] = 0
    if values["on_module"] is None:
        values["on_module"] = False
    if values["mig_needs_reset"] is None:
        values["mig_needs_reset"] = False
    data = {
        "schema": 1,
        "key": key,
        "boards": [{"name": fields["name"].value, "pci_device_id": fields["pci_device_id"].value}],
        **values,
        "profiles": profiles,
        "compute_instance_profiles": _compute_instance_profiles(profiles, models, unconfirmed),
        "unconfirmed": unconfirmed,
        "sources": [source],
    }
    text = _to_text(data)
    # Parse the text, so that the error names missing required fields.
    parse_model(text, key.lower() + ".json")
    return text


def _value(fields: dict[str, Field], path: str, name: str, part: str, unconfirmed: dict[str, str]) -> Any:
    field = fields.get(path)
    if field is None:
        return None
    if not field.known:
        text = f"{part} was not read: {field.reason}"
        unconfirmed[name] = f"{unconfirmed[name]}; {text}" if name in unconfirmed else text
    elif path == "power_watts.idle" and field.value is None:
        unconfirmed[name] = "idle power was not read"
    return field.value


def _profiles(fields: dict[str, Field]) -> list[dict[str, Any]]:
    found = []
    for name in profile_names(fields):
        profile: dict[str, Any] = {"name": name}
        for line in _PROFILE_LINES:
            profile.update({field: fields[f"profiles.{name}.{field}"].value for field in line})
        profile["unconfirmed"] = {
            field: fields[f"profiles.{name}.{field}"].reason
            for line in _PROFILE_LINES
            for field in line
            if not fields[f"profiles.{name}.{field}"].known
        }
        found.append(profile)
    return found


def _compute_instance_profiles(
    profiles: list[dict[str, Any]], models: dict[str, Model], unconfirmed: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the catalogue's compute instance profiles, by a GPU instance's slices.

    NVML reports compute instance profiles only inside an instance.
    """
    if not profiles:
        return {}
    known = {slices: inner for model in models.values() for slices, inner in model.compute_instance_profiles.items()}
    unconfirmed["compute_instance_profiles"] = "as other models have them: not read"
    found = {}
    for slices in sorted({profile["compute_slices"] for profile in profiles}):
        if slices in known:
            rows = [
                {
                    "compute_slices": one.compute_slices,
                    "nvml_profile": one.nvml_profile,
                    "profile_id": one.profile_id,
                    "max_instances": one.max_instances,
                    "placement_starts": list(one.placement_starts),
                }
                for one in known[slices]
            ]
        else:
            number = _COMPUTE_PROFILES.get(slices, 0)
            rows = [
                {
                    "compute_slices": slices,
                    "nvml_profile": number,
                    "profile_id": number,
                    "max_instances": 1,
                    "placement_starts": [0],
                }
            ]
        found[str(slices)] = rows
    return found


def _to_text(data: dict[str, Any]) -> str:
    """Return JSON in the model files' format, with one line per field."""
    lines = []
    for name, value in data.items():
        lines.append(f"  {json.dumps(name)}: {_field_text(name, value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _field_text(name: str, value: Any) -> str:
    if name in ("boards", "sources") and value:
        return "[\n" + ",\n".join(f"    {json.dumps(one)}" for one in value) + "\n  ]"
    if name == "profiles" and value:
        return "[\n" + ",\n".join(_profile_text(profile) for profile in value) + "\n  ]"
    if name == "unconfirmed" and value:
        return "{\n" + ",\n".join(f"    {json.dumps(key)}: {json.dumps(text)}" for key, text in value.items()) + "\n  }"
    if name == "compute_instance_profiles" and value:
        groups = []
        for slices, rows in value.items():
            inner = ",\n".join(f"      {json.dumps(row)}" for row in rows)
            groups.append(f"    {json.dumps(slices)}: [\n{inner}\n    ]")
        return "{\n" + ",\n".join(groups) + "\n  }"
    return json.dumps(value)


def _profile_text(profile: dict[str, Any]) -> str:
    parts = []
    for line in _PROFILE_LINES:
        parts.append(", ".join(f"{json.dumps(field)}: {json.dumps(profile[field])}" for field in line))
    parts.append('"unconfirmed": %s' % json.dumps(profile["unconfirmed"]))
    body = (",\n     ").join(parts)
    return f'    {{"name": {json.dumps(profile["name"])}, {body}}}'
