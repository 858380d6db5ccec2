# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the devices that Slurm allocates as gres/gpu, in Slurm's order.

A device is a GPU, or a compute instance of a GPU in MIG mode. slurmd numbers devices by the order of types in the
node's `Gres=`, and then by the order of lines in gres.conf (src/interfaces/gres.c, _merge_gres2). Jobs hold devices by
this number.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Collection, Iterable, Sequence

from ....module_utils.layout.profile_name import profile_order
from ....module_utils.model import Gpu
from ....module_utils.slurm.mig_devices import Device, instance_types, mig_devices
from ...techniques.access import Clients
from ..model import NodeGpu, NodeInstance
from .gres import SERVED
from .quotas import without_leases

_BRANDS = ("nvidia", "tesla", "geforce", "quadro")


def gpu_types(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return each GPU's GRES type by UUID.

    The type is the model's short name, such as h100. If two of the node's models have the same short name, their types
    are the full names. Each type is a part of the name that AutoDetect=nvml finds.
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


def desired(gpus: Sequence[NodeGpu], kept: Collection[str] = ()) -> list[Device]:
    """Return the layout's devices in Slurm's order.

    GPUs whose quotas are leased have none. `kept` has the UUIDs of MIG devices that the layout's plan keeps. If a GPU's
    instances differ from the layout, its other devices count as new.
    """
    types = gpu_types(each.gpu for each in gpus)
    found: list[Device] = []
    for each in _by_index(without_leases(gpus)):
        kind = types[each.gpu.uuid]
        if each.instances is None:
            # A GPU with an MPS daemon only accepts MPS clients. Its separate type keeps jobs for whole GPUs away.
            found.append(Device(kind + SERVED if isinstance(each.access, Clients) else kind, each.gpu, each.gpu.uuid))
        elif matches_layout(each):
            found += mig_devices(each.gpu)
        else:
            staying = [device for device in mig_devices(each.gpu) if device.uuid in kept]
            for kind in _desired_types(each.instances):
                device = next((one for one in staying if one.type == kind), Device(kind, each.gpu))
                found.append(device)
                staying = [one for one in staying if one is not device]
    return _in_order(found)


def matches_layout(each: NodeGpu) -> bool:
    """Return whether a GPU's current instances match the desired ones."""
    if each.instances is None:
        return not each.gpu.mig.enabled
    types = Counter(device.type for device in mig_devices(each.gpu))
    return each.gpu.mig.enabled and types == Counter(_desired_types(each.instances))


def _desired_types(instances: Sequence[NodeInstance]) -> list[str]:
    ordered = sorted(instances, key=lambda instance: profile_order(instance.profile))
    return [kind for each in ordered for kind in instance_types(each.profile, each.compute_slices)]


def _by_index(gpus: Sequence[NodeGpu]) -> list[NodeGpu]:
    return sorted(gpus, key=lambda each: each.gpu.index)


def _in_order(devices: Sequence[Device]) -> list[Device]:
    """Group devices by type.

    The types are in the order of their first devices.
    """
    kinds = list(dict.fromkeys(device.type for device in devices))
    return sorted(devices, key=lambda device: kinds.index(device.type))
