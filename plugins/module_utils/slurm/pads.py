# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check whether a job could get a pad, a placeholder device, of a Slurm node.

Slurm gives pads to requests for gres/gpu without a type. Only a job_submit plugin can refuse such requests
(https://slurm.schedmd.com/resource_limits.html, "Specific limits over GRES"). This code tries such requests, because
slurmctld accepts them if the plugin's script fails.
"""

from __future__ import annotations

import re
from typing import Mapping

from ..holders.slurm import NODE_NAME
from ..processes.command import Run, ask

# Part of the message of require_gpu_type.lua (role gpu_slurm). A refusal for another reason may be temporary.
MESSAGE = "Request GPUs with a type"
# One request of each kind that could get a pad.
REQUESTS = (
    ("--gres=gpu:1",),
    ("--gpus=1",),
    ("--gpus-per-node=1",),
    ("--gpus-per-task=1",),
    ("--gpus-per-socket=1", "--sockets-per-node=1"),
    ("--gres=gpu:pad:1",),
)
_MOST_PARTITIONS = 32
_FIELDS = ("tres-per-node", "tres-per-job", "tres-per-socket", "tres-per-task")
_WIDTH = 120
_UNTYPED = re.compile(r"gres[:/]gpu(?:[:=][0-9]+[KMGTP]?)?(?:,|$)", re.IGNORECASE)


def pad_problem(run: Run, partitions: str, configured: Mapping[str, str]) -> str:
    """Return why a job could get one of a node's pads.

    Returns "" if the cluster refuses all such requests. `partitions` has the node's partitions, separated by commas.
    Submits no job.
    """
    if configured.get("JobSubmitPlugins", "(null)") == "(null)":
        return "no job_submit plugin refuses requests for GPUs without a type"
    names = [name for name in partitions.split(",") if name]
    if len(names) > _MOST_PARTITIONS or not all(map(NODE_NAME.match, names)):
        return "the partitions of the node cannot be tested"
    try:
        # Jobs from before the rule can still start, and ended jobs can be requeued.
        problem = _queue_problem(run)
        if problem:
            return problem
        for name in names:
            for request in REQUESTS:
                command = [
                    "sbatch",
                    "--test-only",
                    "--partition=%s" % name,
                    "--ntasks=1",
                    "--chdir=/",
                    *request,
                    "--wrap=true",
                ]
                text, problem = ask(run, command)
                if text is not None or MESSAGE not in problem:
                    return "partition %s does not refuse %s by the rule of require_gpu_type.lua" % (name, request[0])
    except FileNotFoundError as error:
        return "%s is not installed" % error.filename
    return ""


def _queue_problem(run: Run) -> str:
    """Describe a job in the queue that requests GPUs without a type.

    Returns "" if there is none.
    """
    widths = ",".join("%s:%d" % (field, _WIDTH) for field in _FIELDS)
    text, problem = ask(run, ["squeue", "--all", "--noheader", "--states=all", "--Format=jobid:20,%s" % widths])
    if text is None:
        return "the requests of the jobs are unknown: %s" % problem
    for line in text.splitlines():
        requests = [line[start : start + _WIDTH] for start in range(20, 20 + _WIDTH * len(_FIELDS), _WIDTH)]
        # A request that fills its column may be truncated.
        if any(not each.endswith(" ") or _UNTYPED.search(each.strip()) for each in requests):
            return "job %s requests GPUs without a type" % line[:20].strip()
    return ""
