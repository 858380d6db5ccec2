# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a layout and the GPUs that are there to what each GPU shall become.

Selectors are resolved to UUIDs each time a layout is applied: an index can mean another GPU after a reboot.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Sequence

from .errors import SelectorError
from .layout_types import Entry, Layout, MigInstance, Selector
from .mig_steps import DEFAULT, EXCLUSIVE_PROCESS, Target, WantedInstance
from .model import Gpu
from .techniques.registry import TECHNIQUES

#: Of a GPU, by its sharing; with MIG it belongs to the instances.
COMPUTE_MODES = {
    "mig": None,
    "exclusive": EXCLUSIVE_PROCESS,
    "shared": DEFAULT,
    "mps": EXCLUSIVE_PROCESS,
    "vgpu": DEFAULT,
    **{technique.key: technique.compute_mode for technique in TECHNIQUES},
}


def targets(layout: Layout, gpus: Sequence[Gpu]) -> tuple[Target, ...]:
    """One target for each GPU that the layout names, in the order of the GPUs.

    Raises SelectorError where a selector matches nothing or a GPU is named twice.
    """
    named: dict[str, tuple[str, Entry]] = {}
    for entry in layout.entries:
        for position, selector in enumerate(entry.selectors):
            where = "%s.gpus[%d]" % (entry.where, position)
            for gpu in select(selector, gpus, where):
                if gpu.uuid in named:
                    raise SelectorError(
                        where,
                        "%s is named here and by %s too" % (gpu.label, named[gpu.uuid][0]),
                        "Name each GPU in one entry only.",
                    )
                named[gpu.uuid] = (where, entry)
    return tuple(_target(gpu, named[gpu.uuid][1]) for gpu in gpus if gpu.uuid in named)


def select(selector: Selector, gpus: Sequence[Gpu], where: str) -> list[Gpu]:
    """The GPUs that a selector names, never none: raises SelectorError with what there is to choose from."""
    found = [gpu for gpu in gpus if matches(selector, gpu)]
    if found:
        return found
    if selector.kind == "index" and gpus:
        problem = "this host has no GPU %s" % selector.value
        raise SelectorError(where, problem, "It has %s.%s" % (_indices(gpus), _octal_hint(selector)))
    there = (
        ", ".join("%d: %s, %s, %s" % (gpu.index, gpu.name, gpu.uuid, gpu.pci_address) for gpu in gpus)
        or "no GPU at all"
    )
    raise SelectorError(where, "no GPU of this host matches %s" % selector, "There is %s." % there)


def asked(target: Target) -> str:
    """Return in words what the layout asks of a GPU."""
    for technique in TECHNIQUES:
        if technique.key == target.sharing:
            return "%s: %s" % (target, target.settings.get(technique.setting))
    return str(target)


def _indices(gpus: Sequence[Gpu]) -> str:
    """Return the indices of GPUs in words: ``GPU 0 alone``, ``GPUs 0 to 7``, ``GPUs 0, 2 and 3``."""
    indices = sorted(gpu.index for gpu in gpus)
    if len(indices) == 1:
        return "GPU %d alone" % indices[0]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return "GPUs %d to %d" % (indices[0], indices[-1])
    return "GPUs %s and %d" % (", ".join(map(str, indices[:-1])), indices[-1])


def _octal_hint(selector: Selector) -> str:
    """A sentence where the index may have been written with a leading zero, which makes it octal to YAML 1.1."""
    if not isinstance(selector.value, int) or selector.value < 8:
        return ""
    return " YAML reads 0%o as %d: write indices without leading zeros." % (selector.value, selector.value)


def matches(selector: Selector, gpu: Gpu) -> bool:
    """Whether the selector names the GPU."""
    if selector.kind == "all":
        return True
    if selector.kind == "index":
        return gpu.index == selector.value
    if selector.kind == "uuid":
        return gpu.uuid.lower() == str(selector.value).lower()
    if selector.kind == "pci":
        return gpu.pci_address.lower() == selector.value
    name = gpu.name[len("NVIDIA ") :] if gpu.name.startswith("NVIDIA ") else gpu.name
    return fnmatchcase(name, str(selector.value))


def _target(gpu: Gpu, entry: Entry) -> Target:
    where = entry.where
    wanted = [each for instance in entry.mig or () for each in _wanted(instance)]
    settings = {each.setting: each.wanted(entry.part if each.key == entry.sharing else None) for each in TECHNIQUES}
    mode = COMPUTE_MODES[entry.sharing]
    return Target(gpu.uuid, where, entry.sharing, entry.sharing == "mig", tuple(wanted), mode, settings)


def _wanted(instance: MigInstance) -> list[WantedInstance]:
    slices = tuple(sorted(instance.compute_slices, reverse=True)) or None
    return [WantedInstance(instance.profile, instance.placement, slices)] * instance.count
