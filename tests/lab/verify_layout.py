#!/usr/bin/env python3
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare gpu_layout in host_vars with nvidia-smi on each lab host.

usage: verify_layout.py [HOST...]     default: all hosts of inventories/simulated. Exits with 1 if a host differs

This program shares no code with the collection that it checks. It reads a tenant's quota by running nvidia-smi as the
tenant: the reported memory size is the quota.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.lab.mps_answers import Daemon, DaemonError, read_daemons
from tests.lab.nvidia_smi import Gpu, NvidiaSmiError, Run, read_gpus

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORY = REPOSITORY / "inventories" / "simulated"

COMPUTE_MODE = {
    "exclusive": "Exclusive_Process",
    "mps": "Exclusive_Process",
    "shared": "Default",
    "time_slicing": "Default",
    "vgpu": "Default",
}
MIB_IN = {"MiB": 1, "GiB": 1024}


def selects(selector, gpu: Gpu) -> bool:
    """Return whether a selector of gpu_layout matches this GPU."""
    if isinstance(selector, dict):
        return fnmatch.fnmatchcase(gpu.name.replace("NVIDIA ", "", 1), selector["model"])
    if selector == "all" or selector == gpu.index or selector == gpu.uuid:
        return True
    return isinstance(selector, str) and gpu.pci_address.lower().endswith(selector.lower())


def wanted_instances(mig: list[dict]) -> list[tuple[str, tuple[str, ...], int | None]]:
    """Return the requested instances.

    Each one is (profile, profiles of compute instances, pinned start or None).
    """
    return [
        (item["profile"], tuple(sorted(item.get("compute_instances", [item["profile"]]))), item.get("placement"))
        for item in mig
        for _ in range(item.get("count", 1))
    ]


def differences_of_gpu(entry: dict, gpu: Gpu) -> list[str]:
    """Return the differences between `gpu` and `entry`, one sentence each."""
    found = []
    mig = entry["sharing"] == "mig"
    # For a GPU that does not support MIG, nvidia-smi shows N/A, which counts as Disabled.
    if (gpu.mig_mode == "Enabled") != mig or gpu.mig_mode_pending != gpu.mig_mode:
        mode = f"{gpu.mig_mode} (pending {gpu.mig_mode_pending})"
        found.append(f"MIG mode is {mode}, asked for sharing: {entry['sharing']}")
    if not mig and gpu.compute_mode != COMPUTE_MODE[entry["sharing"]]:
        found.append(f"compute mode is {gpu.compute_mode}, asked for {COMPUTE_MODE[entry['sharing']]}")

    time_slice = entry["time_slicing"]["slice"] if entry["sharing"] == "time_slicing" else "default"
    if (gpu.time_slice or "Default").lower() != time_slice:
        found.append(f"the time slice is {gpu.time_slice}, asked for {time_slice}")
    wanted = wanted_instances(entry["mig"]) if mig else []
    there = [(i.profile, tuple(i.compute_instances), i.start) for i in gpu.instances.values()]
    if sorted(item[:2] for item in wanted) != sorted(item[:2] for item in there):
        found.append(f"instances are {sorted(there, key=str)}, asked for {wanted}")
    found += [f"no {item[0]} starts at {item[2]}" for item in wanted if item[2] is not None and item not in there]
    devices = sum(len(compute_instances) for _, compute_instances, _ in wanted)
    if len(set(gpu.mig_device_uuids)) != devices:
        found.append(f"{len(set(gpu.mig_device_uuids))} MIG devices have a UUID of their own, {devices} were to")
    return found


def differences(variables: dict, gpus: list[Gpu]) -> list[str]:
    """Return the differences between a host and its variables.

    Each difference is one sentence that starts with the GPU.
    """
    count = sum(item.get("count", 1) for item in variables["gpu_simulator_gpus"])
    found = [] if len(gpus) == count else [f"{len(gpus)} GPUs are there, {count} were asked for"]
    for number, entry in enumerate(variables["gpu_layout"]):
        chosen = [gpu for gpu in gpus if any(selects(selector, gpu) for selector in _as_list(entry["gpus"]))]
        if not chosen:
            found.append(f"gpu_layout[{number}] selects no GPU of the host")
        found += [f"GPU {gpu.index}: {sentence}" for gpu in chosen for sentence in differences_of_gpu(entry, gpu)]
    return found


def differences_of_daemons(variables: dict, gpus: list[Gpu], daemons: dict[str, Daemon]) -> list[str]:
    """Return the differences between the MPS daemons and the variables.

    Supports only layout entries that create exactly one daemon and have no memory limit.
    """
    wanted = {}
    for entry in variables["gpu_layout"]:
        gpu = next(gpu for gpu in gpus if any(selects(selector, gpu) for selector in _as_list(entry["gpus"])))
        if "mps" in entry:
            wanted[entry["mps"]["name"]] = (gpu.uuid, entry["mps"])
        for item in entry.get("mig", []):
            if "mps" in item:
                device = next((i.uuids[0] for i in gpu.instances.values() if i.profile == item["profile"]), None)
                wanted[item["mps"]["name"]] = (device, item["mps"])
    found = []
    if set(wanted) != set(daemons):
        found.append(f"MPS daemons are {sorted(daemons)}, asked for {sorted(wanted)}")
    for name in set(wanted) & set(daemons):
        device, mps = wanted[name]
        seen = (daemons[name].devices, daemons[name].percentage)
        if seen != ([device], mps["active_thread_percentage"]):
            found.append(f"the MPS daemon {name} has {seen}, asked for {mps} on {device}")
    return found


def read_tenants(run: Run, variables: dict) -> dict[str, dict[str, int] | str]:
    """Return {UUID: MiB} or an error text for each tenant of the variables.

    The sizes are the memory sizes that a process of the tenant sees.
    """
    found = {}
    for name in wanted_tenants(variables):
        status, told = run(f"vgpu-run {name} nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader,nounits")
        lines = [line.split(", ") for line in told.splitlines()]
        found[name] = told.strip() if status else {uuid: int(mib) for uuid, mib in lines}
    return found


def wanted_tenants(variables: dict) -> dict[str, tuple[dict, dict]]:
    """Return {tenant name: (entry, tenant)}."""
    entries = [entry for entry in variables["gpu_layout"] if "vgpu" in entry]
    return {tenant["name"]: (entry, tenant) for entry in entries for tenant in entry["vgpu"]["tenants"]}


def differences_of_tenants(variables: dict, gpus: list[Gpu], tenants: dict[str, dict[str, int] | str]) -> list[str]:
    """Return the differences between the tenants and the variables.

    Each tenant must have its quota on as many GPUs of its entry as requested, and on no other GPU.
    """
    cards = {gpu.uuid: gpu.memory for gpu in gpus}
    found = []
    for name, (entry, tenant) in wanted_tenants(variables).items():
        seen = tenants[name]
        if isinstance(seen, str):
            found.append(f"the tenant {name}: {seen}")
            continue
        number, unit = re.fullmatch(r"(\d+)(MiB|GiB)", tenant["memory"]).groups()
        quota = int(number) * MIB_IN[unit]
        own = {gpu.uuid for gpu in gpus if any(selects(selector, gpu) for selector in _as_list(entry["gpus"]))}
        held = {uuid for uuid, mib in seen.items() if mib != cards[uuid]}
        if not held <= own or [seen[uuid] for uuid in held] != [quota] * tenant.get("gpus", 1):
            found.append(
                f"the tenant {name} sees {seen} MiB, asked for {quota} on {tenant.get('gpus', 1)} of {sorted(own)}"
            )
    return found


def _as_list(selectors) -> list:
    return selectors if isinstance(selectors, list) else [selectors]


def podman_run(host_name: str) -> Run:
    """Return a function that runs shell commands on a lab host."""
    container = f"openfleet-{os.environ.get('OPENFLEET_LAB') or 'demo'}-{host_name}"

    def run(command: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(REPOSITORY / ".lab" / "bin" / "podman"), "exec", container, "sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def main(names: list[str]) -> int:
    status = 0
    for name in names or yaml.safe_load((INVENTORY / "hosts.yml").read_text())["gpu_hosts"]["hosts"]:
        variables = yaml.safe_load((INVENTORY / "host_vars" / f"{name}.yml").read_text())
        try:
            gpus, daemons = read_gpus(podman_run(name)), read_daemons(podman_run(name))
            tenants = read_tenants(podman_run(name), variables)
            found = differences(variables, gpus) + differences_of_daemons(variables, gpus, daemons)
            found += differences_of_tenants(variables, gpus, tenants)
        except (NvidiaSmiError, DaemonError) as error:
            gpus, daemons, tenants, found = [], {}, {}, [str(error)]
        if found:
            status = 1
            print(f"{name}: NOT as asked", *found, sep="\n  ")
        else:
            instances = sum(len(gpu.instances) for gpu in gpus)
            parts = f"{len(gpus)} GPUs with {instances} GPU instances"
            parts += f" and {len(daemons)} MPS daemons" if daemons else ""
            parts += f" and {len(tenants)} tenants" if tenants else ""
            print(f"{name}: {parts}, exactly as asked")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
