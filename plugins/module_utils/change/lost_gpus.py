# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan around GPUs that are lost: the driver counts them, and answers nothing about them but GPU_IS_LOST.

Of a lost GPU only the index is known. So a selector names it by index or `all`; one by UUID, PCI address or model that
matches no other GPU, and every one by model, may mean it.
"""

from __future__ import annotations

import dataclasses

from ..errors import NvmlError
from ..frozen import frozen
from ..layout.matching import matches
from ..layout.types import Entry, Layout, Selector
from ..model import Host, LostGpu
from ..nvml.calls import GPU_IS_LOST
from ..techniques.forms import FORMS

#: What to do about an entry that names a lost GPU: fail before anything changes, or leave the GPU out.
POLICIES = FAIL, SKIP = ("fail", "skip")


@frozen
class Answering:
    """The part of a layout that can be planned without the lost GPUs, and a sentence for each lost GPU."""

    layout: Layout
    warnings: tuple[str, ...] = ()


def answering(layout: Layout, host: Host, policy: str) -> Answering:
    """Return the layout for the GPUs that answer.

    An entry that divides something between its GPUs (tenants, an MPS daemon for all of them) is left out whole: its GPUs stay
    as they are. Raises NvmlError where the policy is FAIL and an entry names a lost GPU.
    """
    if not host.lost:
        return Answering(layout)
    entries, warnings = [], {gpu.index: "the layout does not name it" for gpu in host.lost}
    for entry in layout.entries:
        lost = {position: _lost(selector, host) for position, selector in enumerate(entry.selectors)}
        named = {position: gpus for position, gpus in lost.items() if gpus}
        if not named:
            entries.append(entry)
            continue
        if policy == FAIL:
            position, gpus = next(iter(named.items()))
            failure = NvmlError(
                "%s.gpus[%d]" % (entry.where, position),
                "%s %s lost: %s" % (" and ".join("gpu %d" % gpu.index for gpu in gpus), _are(gpus), gpus[0].problem),
                "If a reset or power cycle does not bring it back, check its power cable, seating and riser. To change the "
                "other GPUs meanwhile, set gpu_layout_lost: skip.",
                code=GPU_IS_LOST,
                gpu=str(gpus[0].index),
            )
            failure.code_name = "GpuIsLost"
            raise failure
        left = _without_lost(entry, host)
        for gpu in (gpu for gpus in named.values() for gpu in gpus):
            warnings[gpu.index] = (
                "%s is applied to its other GPUs" % entry.where if left else "%s is not applied" % entry.where
            )
        entries += [left] if left else []
    texts = tuple("gpu %d is lost: %s (%s)" % (gpu.index, warnings[gpu.index], gpu.problem) for gpu in host.lost)
    return Answering(Layout(tuple(entries)), texts)


def _are(gpus: tuple[LostGpu, ...]) -> str:
    return "is" if len(gpus) == 1 else "are"


def _lost(selector: Selector, host: Host) -> tuple[LostGpu, ...]:
    """The lost GPUs that the selector names, or may name."""
    if selector.kind == "index":
        return tuple(gpu for gpu in host.lost if gpu.index == selector.value)
    if selector.kind in ("uuid", "pci") and any(matches(selector, gpu) for gpu in host.gpus):
        return ()
    return host.lost


def _without_lost(entry: Entry, host: Host) -> Entry | None:
    """The entry for the GPUs that answer; None where it cannot be had in part, or has no other GPU."""
    divided = any(form.key == entry.sharing and form.divides(entry.part) for form in FORMS)
    if divided:
        return None
    selectors = tuple(each for each in entry.selectors if any(matches(each, gpu) for gpu in host.gpus))
    return dataclasses.replace(entry, selectors=selectors) if selectors else None
