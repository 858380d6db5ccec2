# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the GPUs that a layout's selector matches."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Sequence

from ..errors import SelectorError
from ..model import Gpu, LostGpu
from .types import Selector


def select(selector: Selector, gpus: Sequence[Gpu], where: str) -> list[Gpu]:
    """Return the GPUs that match a selector.

    Raises SelectorError with the available GPUs if none matches.
    """
    found = [gpu for gpu in gpus if matches(selector, gpu)]
    if found:
        return found
    if selector.kind == "index" and gpus:
        problem = "this host has no GPU %s" % selector.value
        raise SelectorError(where, problem, "It has %s.%s" % (_indices(gpus), _octal_hint(selector)))
    available = (
        ", ".join("%d: %s, %s, %s" % (gpu.index, gpu.name, gpu.uuid, gpu.pci_address) for gpu in gpus)
        or "no GPU at all"
    )
    raise SelectorError(where, "no GPU of this host matches %s" % selector, "There is %s." % available)


def _indices(gpus: Sequence[Gpu]) -> str:
    """Return the indices of GPUs as text.

    Examples: ``GPU 0 alone``, ``GPUs 0 to 7``, ``GPUs 0, 2 and 3``.
    """
    indices = sorted(gpu.index for gpu in gpus)
    if len(indices) == 1:
        return "GPU %d alone" % indices[0]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return "GPUs %d to %d" % (indices[0], indices[-1])
    return "GPUs %s and %d" % (", ".join(map(str, indices[:-1])), indices[-1])


def _octal_hint(selector: Selector) -> str:
    """Return a hint if the index may have a leading zero in the file.

    YAML 1.1 reads a number with a leading zero as octal.
    """
    if not isinstance(selector.value, int) or selector.value < 8:
        return ""
    return " YAML reads 0%o as %d: write indices without leading zeros." % (selector.value, selector.value)


def matches(selector: Selector, gpu: Gpu | LostGpu) -> bool:
    """Return whether the selector matches the GPU.

    Needs only the GPU's attribute that the selector compares.
    """
    if selector.kind == "all":
        return True
    if selector.kind == "index":
        return gpu.index == selector.value
    if selector.kind == "uuid":
        return (gpu.uuid or "").lower() == str(selector.value).lower()
    if selector.kind == "pci":
        return (gpu.pci_address or "").lower() == selector.value
    name = gpu.name or ""
    name = name[len("NVIDIA ") :] if name.startswith("NVIDIA ") else name
    return fnmatchcase(name, str(selector.value))
