# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the GPUs of a lab host with NVIDIA's nvidia-smi.

Nothing here comes from the collection: this is the second opinion that the collection's own report is held against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable
from xml.etree import ElementTree

# Runs a shell command on a host and gives (exit status, standard output).
Run = Callable[[str], "tuple[int, str]"]

# A row of `nvidia-smi mig -lgi`:  |   0  MIG 3g.40gb          9        2          4:4     |
GPU_INSTANCE = re.compile(r"^\|\s+(\d+)\s+MIG (\S+)\s+\d+\s+(\d+)\s+(\d+):\d+\s+\|$", re.MULTILINE)
# A row of `nvidia-smi compute-policy -l`:  |   0   Timeslice       Default       |
TIME_SLICE = re.compile(r"^\|\s+(\d+)\s+Timeslice\s+(\w+)\s+\|$", re.MULTILINE)
# Lines of `nvidia-smi -L`:  GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)
#                              MIG 2c.4g.40gb  Device  0: (UUID: MIG-...)
LISTED = re.compile(
    r"^GPU (?P<gpu>\d+): |^  MIG (?P<name>\S+) +Device +(?P<device>\d+): \(UUID: (?P<uuid>[^)]+)\)$", re.MULTILINE
)


@dataclass
class GpuInstance:
    """A GPU instance: its profile, its first memory slice, the profiles and the UUIDs of its compute instances, sorted.

    The start is None where nvidia-smi does not list the GPU instance, only the MIG devices on it: 535 does not know the
    profiles that came after it (+gfx, -me, +me.all).
    """

    profile: str
    start: int | None
    compute_instances: list[str] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)


@dataclass
class Gpu:
    """A GPU: `mig_mode`, `compute_mode` and `time_slice` in nvidia-smi's words, instances by their id, memory in MiB."""

    index: int
    name: str
    uuid: str
    pci_address: str
    mig_mode: str
    mig_mode_pending: str
    compute_mode: str
    mig_device_uuids: list[str]
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    #: None where it has none.
    time_slice: str | None = None
    memory: int = 0


class NvidiaSmiError(Exception):
    """nvidia-smi could not be asked."""


#: Ends what one of several commands printed, and tells its status.
END = re.compile(r"^=== nvidia-smi ended with (\d+)\n", re.MULTILINE)


def _ask(run: Run, *questions: str) -> list[tuple[int, str]]:
    """(exit status, output) of nvidia-smi with each of these arguments, by one command: each entry of a host has its price."""
    script = "; ".join(
        f"nvidia-smi {words} 2>&1; printf '\\n=== nvidia-smi ended with %d\\n' $?" for words in questions
    )
    status, output = run(script)
    pieces = END.split(output)
    answers = [(int(ended), text) for text, ended in zip(pieces[::2], pieces[1::2])]
    if status != 0 or len(answers) != len(questions):
        raise NvidiaSmiError(f"nvidia-smi could not be asked, status {status}: {output.strip()[-300:]}")
    return answers


def _good(arguments: str, answer: tuple[int, str]) -> str:
    status, output = answer
    if status != 0:
        raise NvidiaSmiError(f"`nvidia-smi {arguments}` ended with {status}: {output.strip()[-300:]}")
    return output


def read_gpus(run: Run) -> list[Gpu]:
    """The GPUs of a host in the order of their index; raises NvidiaSmiError."""
    listing, log, instances, policies = _ask(run, "-L", "-q -x", "mig -lgi", "compute-policy -l")
    devices = _listed_devices(_good("-L", listing))
    gpus = [
        Gpu(
            index=index,
            name=element.findtext("product_name", ""),
            uuid=element.findtext("uuid", ""),
            pci_address=element.get("id", ""),
            mig_mode=element.findtext("mig_mode/current_mig", ""),
            mig_mode_pending=element.findtext("mig_mode/pending_mig", ""),
            compute_mode=element.findtext("compute_mode", ""),
            mig_device_uuids=[uuid for _, uuid in devices[index].values()],
            instances=_instances(element, devices[index]),
            memory=int(element.findtext("fb_memory_usage/total", "0 MiB").split()[0]),
        )
        for index, element in enumerate(ElementTree.fromstring(_good("-q -x", log)).findall("gpu"))
    ]
    # The list ends with a separate error if there are no instances.
    status, table = instances
    for gpu, profile, instance, start in GPU_INSTANCE.findall(table) if status == 0 else ():
        # One without a compute instance is no MIG device: only this list tells of it.
        gpus[int(gpu)].instances.setdefault(int(instance), GpuInstance(profile, None)).start = int(start)
    # This one ends at the first GPU that has none, after those before it.
    _status, table = policies
    for index, name in TIME_SLICE.findall(table):
        gpus[int(index)].time_slice = name
    return gpus


def _listed_devices(listing: str) -> list[dict[int, tuple[str, str]]]:
    """By GPU and by number of the MIG device on it: its name and its UUID."""
    devices: list[dict[int, tuple[str, str]]] = []
    for line in LISTED.finditer(listing):
        if line["gpu"]:
            devices.append({})
        else:
            devices[-1][int(line["device"])] = (line["name"], line["uuid"])
    return devices


def _instances(gpu: ElementTree.Element, devices: dict[int, tuple[str, str]]) -> dict[int, GpuInstance]:
    """The GPU instances of a GPU as its MIG devices show them, by their id."""
    instances: dict[int, GpuInstance] = {}
    for element in gpu.iterfind(".//mig_device"):
        name, uuid = devices[int(element.findtext("index", ""))]
        # A compute instance that is not all of its GPU instance has its own share in front: 2c.4g.40gb.
        profile = re.sub(r"^\d+c\.", "", name)
        instance = instances.setdefault(int(element.findtext("gpu_instance_id", "")), GpuInstance(profile, None))
        instance.compute_instances = sorted([*instance.compute_instances, name])
        instance.uuids = sorted([*instance.uuids, uuid])
    return instances
