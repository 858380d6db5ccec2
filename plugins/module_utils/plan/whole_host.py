# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the workloads that a change of the whole host would end. Pure.

Such a change is a reboot or another driver.
"""

from __future__ import annotations

from ..model import Device, Holder, Host, parts_of
from .disturbance import Disturbance
from .leased import LEASE
from .ownership import Ownership


def ended_workloads(host: Host, ownership: Ownership, why: str) -> list[Disturbance]:
    """Return the workloads of each GPU that the change would end.

    The workloads are holders and leases. Watchers do not count, because they start again. `why` is the change as a clause,
    such as "whose host would reboot".
    """
    held = [(gpu, [h for h in gpu.held_by if not h.watches] + _leases_on(gpu, ownership)) for gpu in host.gpus]
    return [Disturbance("%s, %s," % (gpu.short_label, why), tuple(who)) for gpu, who in held if who]


def _leases_on(gpu: Device, ownership: Ownership) -> list[Holder]:
    """Return the leases that have an instance of the GPU."""
    records = [ownership.lease(gpu, instance) for instance in parts_of(gpu)]
    return [Holder(gpu.uuid, None, LEASE, each.lease) for each in records if each is not None and each.lease]
