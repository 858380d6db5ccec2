# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export the current state of a host's GPUs as a layout, with pure functions.

A fleet whose GPUs are already set up can be adopted in this way.
"""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ..frozen import frozen
from ..layout.form import Seen, export_parts
from ..layout.types import Entry, Layout, Selector
from ..model import Gpu
from ..techniques.forms import FORMS

#: Value of `sharing` by compute mode, for GPUs without MIG.
_SHARINGS = {"default": "shared", "exclusive_process": "exclusive"}


@frozen
class Exported:
    """An exported layout.

    `left_out` has a sentence for each GPU or instance that a layout cannot express.
    """

    layout: Layout
    left_out: tuple[str, ...]


def exported(
    gpus: Sequence[Gpu],
    pin_placements: bool = False,
    select_by: str = "index",
    seen: Seen | None = None,
    whole: bool = True,
) -> Exported:
    """Return the layout of these GPUs, with one entry for equal GPUs.

    `select_by` is "index", "uuid" or "pci". `seen` has the services' current daemons or tenants. `whole` is false if
    the host has other GPUs too. Then no entry uses the selector `all`. Applied to the same host, the layout changes
    nothing, except possibly the objects in `left_out`.
    """
    left_out: list[str] = []
    alike: dict[Entry, list[Gpu]] = {}
    pin = (lambda gpu: _selector(gpu, select_by)) if pin_placements else None
    seen = seen or {}
    shared: dict[str, Entry | None] = {}
    for form in FORMS:
        parts = form.export_together([gpu for gpu in gpus if gpu.uuid not in shared], seen, pin, left_out)
        shared.update((uuid, None if part is None else Entry(0, (), form.key, part)) for uuid, part in parts.items())
    for gpu in gpus:
        entry = shared[gpu.uuid] if gpu.uuid in shared else _entry(gpu, seen, left_out)
        if entry is not None:
            alike.setdefault(entry, []).append(gpu)
    every = whole and not left_out and len(alike) == 1 and select_by == "index"
    entries = []
    for number, (entry, members) in enumerate(alike.items()):
        selectors = (Selector("all"),) if every else tuple(_selector(gpu, select_by) for gpu in members)
        entries.append(dataclasses.replace(entry, index=number, selectors=selectors))
    return Exported(Layout(tuple(entries)), tuple(left_out))


def _entry(gpu: Gpu, seen: Seen, left_out: list[str]) -> Entry | None:
    """Return a GPU's layout entry, without its number and selectors."""
    # Treat a GPU without compute modes like a GPU in the default mode.
    mode = gpu.compute_mode or ("default" if gpu.compute_mode_fixed else None)
    sharing = _SHARINGS.get(mode or "")
    parts = export_parts(FORMS, gpu, seen)
    if sharing is None or any(form.compute_mode != mode for form, _part in parts):
        words = [mode or "not told", *(form.describe(part) for form, part in parts)]
        left_out.append("%s is omitted: no kind of sharing has its compute mode (%s)" % (gpu.label, ", ".join(words)))
        return None
    if parts:
        form, part = parts[-1]
        return Entry(0, (), form.key, part)
    return Entry(0, (), sharing)


def _selector(gpu: Gpu, by: str) -> Selector:
    if by == "pci" and gpu.pci_address:
        return Selector(by, gpu.pci_address)
    # A GPU that is not on a PCI bus still has a UUID.
    return Selector(by, gpu.index) if by == "index" else Selector("uuid", gpu.uuid)
