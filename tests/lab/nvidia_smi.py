# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's own nvidia-smi says about the GPUs of a lab host.

Nothing here comes from the collection: this is the second opinion that the collection's own report is held against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable
from xml.etree import ElementTree

# Runs a shell command on a host and gives (exit status, standard output).
Run = Callable[[str], "tuple[int, str]"]

# nvidia-smi's rows of `mig -lgi`: |   0  MIG 3g.40gb          9        2          4:4     |
GPU_INSTANCE = re.compile(r"^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s+\|$", re.MULTILINE)
# ... and of `mig -lci`:            |   0      2       MIG 2c.4g.40gb   1         0          0:2     |
COMPUTE_INSTANCE = re.compile(r"^\|\s+(\d+)\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s+\|$", re.MULTILINE)


@dataclass
class GpuInstance:
    """A GPU instance: its profile, its first memory slice, the profiles of its compute instances, sorted."""

    profile: str
    start: int
    compute_instances: list[str] = field(default_factory=list)


@dataclass
class Gpu:
    """A GPU: `mig_mode` and `compute_mode` in nvidia-smi's words, instances by their id."""

    index: int
    name: str
    uuid: str
    pci_address: str
    mig_mode: str
    mig_mode_pending: str
    compute_mode: str
    mig_device_uuids: list[str]
    instances: dict[int, GpuInstance] = field(default_factory=dict)


class NvidiaSmiError(Exception):
    """nvidia-smi could not be asked."""


def _ask(run: Run, arguments: str) -> str:
    status, output = run(f"nvidia-smi {arguments}")
    if status != 0:
        raise NvidiaSmiError(f"`nvidia-smi {arguments}` ended with {status}: {output.strip()[-300:]}")
    return output


def read_gpus(run: Run) -> list[Gpu]:
    """The GPUs of a host in the order of their index; raises NvidiaSmiError."""
    log = ElementTree.fromstring(_ask(run, "-q -x"))
    uuids = re.findall(r"(?m)^\s+MIG .*\(UUID: (MIG-\S+)\)$|^(GPU \d+): ", _ask(run, "-L"))
    mig_uuids: list[list[str]] = []
    for mig_uuid, gpu in uuids:
        if gpu:
            mig_uuids.append([])
        else:
            mig_uuids[-1].append(mig_uuid)
    gpus = [
        Gpu(
            index=index,
            name=element.findtext("product_name", ""),
            uuid=element.findtext("uuid", ""),
            pci_address=element.get("id", ""),
            mig_mode=element.findtext("mig_mode/current_mig", ""),
            mig_mode_pending=element.findtext("mig_mode/pending_mig", ""),
            compute_mode=element.findtext("compute_mode", ""),
            mig_device_uuids=mig_uuids[index],
        )
        for index, element in enumerate(log.findall("gpu"))
    ]
    # Where no GPU is in MIG mode, or none has an instance, the lists end with an error of their own.
    if any(gpu.mig_device_uuids for gpu in gpus) or _has_instances(run):
        for gpu, profile, _, instance, start, _ in GPU_INSTANCE.findall(_ask(run, "mig -lgi")):
            gpus[int(gpu)].instances[int(instance)] = GpuInstance(profile, int(start))
    if any(gpu.mig_device_uuids for gpu in gpus):
        for gpu, instance, profile, *_ in COMPUTE_INSTANCE.findall(_ask(run, "mig -lci")):
            gpus[int(gpu)].instances[int(instance)].compute_instances.append(profile)
    for gpu in gpus:
        for instance in gpu.instances.values():
            instance.compute_instances.sort()
    return gpus


def _has_instances(run: Run) -> bool:
    """Whether a GPU instance stands; one without a compute instance is no MIG device, and -L tells nothing of it."""
    return run("nvidia-smi mig -lgi")[0] == 0
