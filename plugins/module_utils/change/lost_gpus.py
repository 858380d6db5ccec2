# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a layout for a host that has lost GPUs (`Host.lost`).

A GPU is lost if an NVML call for it fails or if the driver does not count it. A selector is compared with the
attributes of a lost GPU that are known. If the model is unknown, a selector by model may match the GPU. If the index,
UUID or PCI address is unknown, a selector by this attribute may match the GPU if it matches no other GPU.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ..frozen import frozen
from ..layout.matching import matches
from ..layout.types import Entry, Layout, Selector
from ..model import Host, LostGpu
from ..techniques.forms import FORMS
from ..vendors.registry import vendor_of_host

#: Policies for layout entries that name a lost GPU: fail before anything changes, or skip the GPU.
POLICIES = FAIL, SKIP = ("fail", "skip")


@frozen
class Answering:
    """The part of a layout that can be planned, with a warning for each lost GPU."""

    layout: Layout
    warnings: tuple[str, ...] = ()


def answering(layout: Layout, host: Host, policy: str) -> Answering:
    """Return the layout for the working GPUs.

    If an entry divides tenants or one MPS daemon between its GPUs, the whole entry is skipped and its GPUs do not
    change. Raises DeviceError if the policy is FAIL and an entry names a lost GPU.
    """
    if not host.lost:
        return Answering(layout)
    entries, warnings = [], dict.fromkeys(host.lost, "the layout does not name it")
    for entry in layout.entries:
        lost = {position: _lost(selector, host) for position, selector in enumerate(entry.selectors)}
        named = {position: gpus for position, gpus in lost.items() if gpus}
        if not named:
            entries.append(entry)
            continue
        if policy == FAIL:
            position, gpus = next(iter(named.items()))
            raise vendor_of_host().lost_error("%s.gpus[%d]" % (entry.where, position), gpus)
        left = _without_lost(entry, host)
        for gpu in (gpu for gpus in named.values() for gpu in gpus):
            warnings[gpu] = (
                "%s is applied to its other GPUs" % entry.where if left else "%s is not applied" % entry.where
            )
        entries += [left] if left else []
    texts = tuple("%s %s: %s (%s)" % (gpu.label, gpu.state, warnings[gpu], gpu.problem) for gpu in host.lost)
    return Answering(Layout(tuple(entries)), texts)


def newly_lost(before: Sequence[LostGpu], host: Host) -> tuple[str, ...]:
    """Return a sentence for each GPU that is lost now but was not in `before`."""
    known = {(gpu.index, gpu.pci_address if gpu.index is None else None) for gpu in before}
    found = [gpu for gpu in host.lost if (gpu.index, gpu.pci_address if gpu.index is None else None) not in known]
    return tuple("%s %s: it worked when the run began (%s)" % (gpu.label, gpu.state, gpu.problem) for gpu in found)


def _lost(selector: Selector, host: Host) -> tuple[LostGpu, ...]:
    """Return the lost GPUs that the selector matches or may match."""
    known = {"index": "index", "uuid": "uuid", "pci": "pci_address", "model": "name"}
    # Selectors of these kinds match one GPU.
    single = selector.kind in ("index", "uuid", "pci")
    if single and any(matches(selector, gpu) for gpu in host.gpus):
        return ()
    named = [
        gpu
        for gpu in host.lost
        if selector.kind not in known or (getattr(gpu, known[selector.kind]) is not None and matches(selector, gpu))
    ]
    if selector.kind not in known or (single and named):
        return tuple(named)
    return tuple(gpu for gpu in host.lost if gpu in named or getattr(gpu, known[selector.kind]) is None)


def _without_lost(entry: Entry, host: Host) -> Entry | None:
    """Return the entry without its lost GPUs.

    Returns None if the entry cannot be split or has no working GPU.
    """
    divided = any(form.key == entry.sharing and form.divides(entry.part) for form in FORMS)
    if divided:
        return None
    selectors = tuple(each for each in entry.selectors if any(matches(each, gpu) for gpu in host.gpus))
    return dataclasses.replace(entry, selectors=selectors) if selectors else None
