# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports the host that this runs on: for the command gpu-layout and the module layout_export."""

from __future__ import annotations

import dataclasses

from ..nvml.bounded_session import BoundedSession
from ..techniques.observers import OBSERVERS
from ..techniques.service_views import SERVICE_VIEWS
from .layout import Exported, exported

#: How GPUs are named in a layout.
SELECT_BY = ("index", "uuid", "pci")


def export_host(pin_placements: bool = False, select_by: str = SELECT_BY[0]) -> Exported:
    """Return the layout of what is there. Raises NvmlError."""
    with BoundedSession() as session:
        # nvidia-smi and daemons know only the GPUs of the whole host.
        session.observers = () if session.private else OBSERVERS
        seen = {each.key: each.look(session.private) for each in SERVICE_VIEWS}
        host = session.observe()
    found = exported(host.gpus, pin_placements, select_by, seen)
    lost = tuple("gpu %d is lost: %s" % (gpu.index, gpu.problem) for gpu in host.lost)
    return dataclasses.replace(found, left_out=(*found.left_out, *lost))
