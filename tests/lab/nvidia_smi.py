# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the GPUs of a lab host with NVIDIA's nvidia-smi.

This module uses no code of the collection, so that tests can compare the collection's own report with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable
from xml.etree import ElementTree

# A function that runs a shell command on a host, and returns (exit status, standard output).
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
    """A GPU instance with its profile, first memory slice and compute instances.

    Profiles and UUIDs of the compute instances are sorted. The start is None if nvidia-smi lists only the MIG devices
    of the GPU instance. Version 535 does so for newer profiles (+gfx, -me, +me.all).
    """

    profile: str
    start: int | None
    compute_instances: list[str] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)


@dataclass
class Gpu:
    """A GPU with its modes, its time slice, and its instances by id.

    The modes and the time slice are texts of nvidia-smi. Memory is in MiB.
    """

    index: int
    name: str
    uuid: str
    pci_address: str
    mig_mode: str
    mig_mode_pending: str
    compute_mode: str
    mig_device_uuids: list[str]
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    #: None if the GPU has no time slice.
    time_slice: str | None = None
    memory: int = 0


class NvidiaSmiError(Exception):
    """nvidia-smi failed."""


#: A line like this follows the output of each command, and contains the command's exit status.
END = re.compile(r"^=== nvidia-smi ended with (\d+)\n", re.MULTILINE)


def _ask(run: Run, *questions: str) -> list[tuple[int, str]]:
    """Return (exit status, output) of nvidia-smi for each of these arguments.

    All calls run in one command, because each command on a host is slow.
    """
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
    """Return the GPUs of a host, ordered by index.

    Raises NvidiaSmiError if nvidia-smi fails.
    """
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
    # Without instances, nvidia-smi prints an error message instead of a list.
    status, table = instances
    for gpu, profile, instance, start in GPU_INSTANCE.findall(table) if status == 0 else ():
        # MIG devices exist only for compute instances. An instance without a compute instance is only in this list.
        gpus[int(gpu)].instances.setdefault(int(instance), GpuInstance(profile, None)).start = int(start)
    # The list stops at the first GPU without a time slice.
    _status, table = policies
    for index, name in TIME_SLICE.findall(table):
        gpus[int(index)].time_slice = name
    return gpus


def _listed_devices(listing: str) -> list[dict[int, tuple[str, str]]]:
    """Return {MIG device number: (name, UUID)} of each GPU."""
    devices: list[dict[int, tuple[str, str]]] = []
    for line in LISTED.finditer(listing):
        if line["gpu"]:
            devices.append({})
        else:
            devices[-1][int(line["device"])] = (line["name"], line["uuid"])
    return devices


def _instances(gpu: ElementTree.Element, devices: dict[int, tuple[str, str]]) -> dict[int, GpuInstance]:
    """Return the GPU instances of a GPU by id, derived from its MIG devices."""
    instances: dict[int, GpuInstance] = {}
    for element in gpu.iterfind(".//mig_device"):
        name, uuid = devices[int(element.findtext("index", ""))]
        # If a compute instance is smaller than its GPU instance, its name starts with its own slices: 2c.4g.40gb.
        profile = re.sub(r"^\d+c\.", "", name)
        instance = instances.setdefault(int(element.findtext("gpu_instance_id", "")), GpuInstance(profile, None))
        instance.compute_instances = sorted([*instance.compute_instances, name])
        instance.uuids = sorted([*instance.uuids, uuid])
    return instances
