# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create fleets for right-sizing without a server.

The input is the hosts' state, an audit, and the workloads' current placement.
"""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.model import (
    Audit,
    Finding,
    Holder,
    Holding,
    Quiet,
    Sources,
    Stat,
    Subject,
    Verdict,
    Window,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.observed import hosts_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.today import fleet_today
from ansible_collections.openfleet.gpu.plugins.plugin_utils.rightsize.wishes import wishes
from tests.audit.rightsize_hosts import GIB

H100 = "H100-80GB"
PEAK = Stat(4 * 86400.0, 1.0, max=6.0 * GIB)


def audit_of(states, words=None, quiet_hours=96.0, idle_after_hours=48.0):
    """Return an audit with the same verdict for all subjects except those in `words`.

    `words` has the verdicts of these subjects, by (host, GPU, instance or tenant).
    """
    made = []

    def add(kind, host, row, held, instance="", name=""):
        word = (words or {}).get((host, row["index"], instance or name), "oversized_memory" if held else "free")
        subject = Subject(kind, host, row["uuid"], str(row["index"]), row["name"], mig_instance=instance, name=name)
        holders = None if held is None else (Holder("process", "x"),) if held else ()
        quiet = Quiet(quiet_hours * 3600, rest_watts=75.0) if word in ("idle", "held_without_process", "free") else None
        holding = Holding(subject, holders=holders, memory=PEAK, quiet=quiet)
        made.append(
            Finding(
                "%d" % len(made),
                Verdict(word, "So it is.", waste_per_month=10.0, idle_after_seconds=idle_after_hours * 3600),
                holding,
            )
        )

    for host, found in states.items():
        for row in found["gpus"]:
            instances = row["mig"]["instances"]
            for one in instances:
                add("mig_instance", host, row, bool(one["holders"]), str(one["id"]))
            if not instances:
                add("gpu", host, row, None if row["holders"] is None else bool(row["holders"]))
            for tenant in found["vgpu_tenants"]:
                if row["uuid"] in [place["uuid"] for place in tenant["gpus"]]:
                    add("tenant", host, row, True, name=tenant["name"])
    return Audit(1e9, Window(1e9 - 345600, 1e9), Sources(), tuple(made))


def today(states, layouts=None, said=None, words=None):
    given = {host: wishes(rows, host) for host, rows in (said or {}).items()}
    return fleet_today(audit_of(states, words), hosts_today(states, layouts or {}), given)
