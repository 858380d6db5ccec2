# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implement openfleet.gpu.rightsize (proposes layouts) on the controller."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Mapping

from ansible.utils.display import Display

from ..modules.rightsize import DOCUMENTATION
from ..plugin_utils.audit import pods
from ..plugin_utils.audit.holdings import hosts_of
from ..plugin_utils.audit.jobs import slurm_of
from ..plugin_utils.audit.make import Order
from ..plugin_utils.audit.options import access, holidays, prices, seconds, thresholds
from ..plugin_utils.audit.owners import owners
from ..plugin_utils.controller_action import ControllerAction
from ..plugin_utils.host_results import gpu_info_of_all
from ..plugin_utils.plain import plain
from ..plugin_utils.rightsize.wishes import wishes

display = Display()


class ActionModule(ControllerAction):
    documentation = DOCUMENTATION

    def work(self, arguments: dict[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        states, refused = gpu_info_of_all(arguments.pop("hosts"), tenants_whole=True)
        slurm = slurm_of(arguments.pop("slurm"))
        try:
            return self._propose(plain(arguments), states, refused, slurm)
        except ImportError as error:
            cure = "pip install -r requirements-rightsize.txt into the Python that runs ansible-playbook"
            return {"failed": True, "msg": "%s is missing on the controller: %s." % (error.name or error, cure)}

    def _propose(
        self,
        args: Mapping[str, Any],
        states: Mapping[str, dict[str, Any]],
        refused: list[str],
        slurm: tuple[Mapping[str, Any], Mapping[str, str]],
    ) -> dict[str, Any]:
        # Only this module needs NumPy, which takes long to load.
        from ..plugin_utils.rightsize import make, options, sums, write

        pods_by_host, unknown = pods.look_up(states, pods.places(args["kubernetes"]))
        grace_seconds = seconds(args["reclaim_grace"]) if args["reclaim_grace"] else None
        request = make.Request(
            audit=Order(
                window_seconds=seconds(args["window"]),
                access=access(args["prometheus"]),
                selector=args["selector"],
                hosts=hosts_of(states, pods_by_host),
                hosts_asked=args["hosts_asked"] or sorted(states),
                refused=refused,
                notes=unknown,
                prices=prices(args["prices"]),
                currency=args["currency"],
                thresholds=thresholds(args["thresholds"]),
                exempt=args["exempt"],
                holidays=holidays(args["holidays"]),
                jobs=slurm[0],
                nodes=slurm[1],
                owners=owners(args["owners"]),
            ),
            states=pods.named(states, pods_by_host),
            layouts={host: layout for host, layout in args["layouts"].items() if layout},
            wishes={host: wishes(rows, host) for host, rows in args["workloads"].items() if rows},
            limits=options.limits(args["reach"], args["max_moved"], args["max_destroyed"], args["packing"]),
            policy=options.policy(args["sizing"], args["confidence"]),
            most_candidates=max(0, args["max_candidates"]),
            reclaim_grace_seconds=grace_seconds,
            reclaim_exempt=args["reclaim_exempt"],
            reclaim_standby=args["reclaim_standby"],
            reclaim_jobs=args["reclaim_jobs"],
        )
        proposal = make.make(request, time.time(), lambda line: display.display("rightsize: %s" % line))
        files = []
        if args["directory"] and not self._task.check_mode:
            files = write.all_of(proposal, Path(args["directory"]))
        return {
            # Writing a proposal is not a change.
            "changed": False,
            "summary": sums.summary(proposal),
            "line": sums.line(proposal),
            "promise": proposal.promise,
            "notes": list(proposal.notes),
            "layouts": {
                change.host: [dict(entry) for entry in change.layout]
                for change in proposal.hosts
                if change.changes_layout
            },
            "reclaim_grace_seconds": grace_seconds or request.audit.thresholds.idle_hours * 3600,
            "reclaim": [dataclasses.asdict(holder) for holder in proposal.reclaim],
            "colocations": [dataclasses.asdict(each) for each in proposal.colocations],
            "lease_pools": [dataclasses.asdict(pool) for pool in proposal.lease_pools],
            "files": [str(path) for path in files],
        }
