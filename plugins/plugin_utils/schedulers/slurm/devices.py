# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the devices that Slurm allocates as gres/gpu, in Slurm's order.

A device is a GPU, or a compute instance of a GPU in MIG mode. slurmd numbers devices by the order of types in `Gres=` of the
node, and then by the order of lines in gres.conf (src/interfaces/gres.c, _merge_gres2). Jobs hold devices by this number.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence

from ....module_utils.model import ComputeInstance, Gpu, GpuInstance
from ...techniques.access import Clients
from ..model import NodeGpu, NodeInstance, profile_order
from .gres import SERVED

_BRANDS = ("nvidia", "tesla", "geforce", "quadro")


@dataclass(frozen=True)
class Device:
    """A device of gres/gpu.

    `uuid` is the UUID of the GPU or of the MIG device. It is empty if the device does not exist yet. `instance_id` and
    `compute_id` are None for a whole GPU, and for a device that does not exist yet.
    """

    type: str
    gpu: Gpu
    uuid: str = ""
    instance_id: int | None = None
    compute_id: int | None = None


def gpu_types(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the GRES type of each GPU by UUID.

    The type is the short name of the model, such as h100. If two models of the node share it, both have their full names. Each
    type is a part of the name that AutoDetect=nvml finds.
    """
    names = {gpu.uuid: _words(gpu.name) for gpu in gpus}
    short = {uuid: _short(words) for uuid, words in names.items()}
    models = Counter(kind for kind, _model in {(short[uuid], tuple(words)) for uuid, words in names.items()})
    return {uuid: short[uuid] if models[short[uuid]] == 1 else "_".join(words) for uuid, words in names.items()}


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9._-]+", name.lower()) if word not in _BRANDS]


def _short(words: Sequence[str]) -> str:
    """Return the words up to the first one with a digit.

    Examples: h100, a100 for A100-SXM4-40GB, and rtx_pro_6000.
    """
    for number, word in enumerate(words):
        if re.search("[0-9]", word):
            return "_".join([*words[:number], word.partition("-")[0]])
    return "_".join(words)


def instance_types(profile: str, compute_slices: Sequence[int] = ()) -> list[str]:
    """Return the GRES types of an instance, one for each compute instance.

    Requests cannot contain a plus sign, so it becomes a dot: 1g.10gb.me.
    """
    name = profile.replace("+", ".")
    return ["%dc.%s" % (slices, name) for slices in compute_slices] or [name]


def desired(gpus: Sequence[NodeGpu]) -> list[Device]:
    """Return the devices of the layout in Slurm's order.

    If the instances of a GPU differ from the layout, all of them count as new.
    """
    types = gpu_types(each.gpu for each in gpus)
    found: list[Device] = []
    for each in _by_index(gpus):
        kind = types[each.gpu.uuid]
        if each.instances is None:
            # A GPU with an MPS daemon accepts only MPS clients, so jobs for whole GPUs must not get it.
            found.append(Device(kind + SERVED if isinstance(each.access, Clients) else kind, each.gpu, each.gpu.uuid))
        elif matches_layout(each):
            found += _current_instances(each.gpu)
        else:
            found += [Device(kind, each.gpu) for kind in _desired_types(each.instances)]
    return _in_order(found)


def current(gpus: Sequence[Gpu], layout_gpus: Sequence[NodeGpu]) -> list[Device]:
    """Return the current devices in the order that the collection writes.

    `layout_gpus` are the same GPUs with their entries. They provide the types of GPUs with MPS.
    """
    types = gpu_types(gpus)
    served = {each.gpu.uuid for each in layout_gpus if isinstance(each.access, Clients)}
    found: list[Device] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        if gpu.mig.enabled:
            found += _current_instances(gpu)
        else:
            found.append(Device(types[gpu.uuid] + SERVED if gpu.uuid in served else types[gpu.uuid], gpu, gpu.uuid))
    return _in_order(found)


def matches_layout(each: NodeGpu) -> bool:
    """Return whether the current instances of a GPU match the desired ones."""
    if each.instances is None:
        return not each.gpu.mig.enabled
    types = Counter(device.type for device in _current_instances(each.gpu))
    return each.gpu.mig.enabled and types == Counter(_desired_types(each.instances))


def _desired_types(instances: Sequence[NodeInstance]) -> list[str]:
    ordered = sorted(instances, key=lambda instance: profile_order(instance.profile))
    return [kind for each in ordered for kind in instance_types(each.profile, each.compute_slices)]


def _current_instances(gpu: Gpu) -> list[Device]:
    whole = {profile.name: profile.compute_slices for profile in gpu.mig.profiles}
    found = []
    for instance in sorted(gpu.mig.instances, key=lambda one: (profile_order(one.profile), one.placement.start)):
        for part in sorted(instance.compute_instances, key=lambda one: (-one.compute_slices, one.placement.start)):
            kind = _type_of(instance, part, whole)
            found.append(Device(kind, gpu, part.mig_uuid or "", instance.id, part.id))
    return found


def _type_of(instance: GpuInstance, part: ComputeInstance, whole: Mapping[str, int]) -> str:
    slices = whole.get(instance.profile, int(instance.profile.partition("g")[0]))
    spans = len(instance.compute_instances) == 1 and part.compute_slices == slices
    return instance_types(instance.profile, () if spans else (part.compute_slices,))[0]


def _by_index(gpus: Sequence[NodeGpu]) -> list[NodeGpu]:
    return sorted(gpus, key=lambda each: each.gpu.index)


def _in_order(devices: Sequence[Device]) -> list[Device]:
    """Group devices by type.

    Types have the order of their first devices.
    """
    kinds = list(dict.fromkeys(device.type for device in devices))
    return sorted(devices, key=lambda device: kinds.index(device.type))
