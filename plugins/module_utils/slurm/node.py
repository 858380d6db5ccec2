# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read this host's Slurm node: its version, its GRES and the jobs that hold them.

The values come from slurmctld. The GPUs' device nodes come from the driver's files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..drain.slurm import Slurm, parse_node
from ..errors import FleetError
from ..holders.slurm import NODE_NAME, NoAnswerError, fields, job_gres
from ..plan.transaction import DIRECTORY
from ..processes.command import Run, ask, run_tool
from . import conf, record
from .device_nodes import capabilities, cores, minors
from .pads import pad_problem

_CONFIGURED = re.compile(
    r"^(SLURM_VERSION|SLURM_CONF|GresTypes|JobSubmitPlugins|TopologyPlugin)\s*=\s*(\S+)\s*$", re.MULTILINE
)
_SLURM_CONF = "/etc/slurm/slurm.conf"
_NAME_CURE = "Set gpu_slurm_node to Slurm's name of this host (scontrol show nodes)."


class SlurmError(FleetError):
    """Slurm does not report this host's node."""

    host_fault = True


def read_node(
    name: str,
    run: Run = run_tool,
    proc: str = "/proc",
    dev: str = "/dev",
    sys: str = "/sys",
    state_directory: str = DIRECTORY,
) -> dict[str, Any]:
    """Return this host's Slurm node as data.

    If `name` is empty, slurmd provides it. Without slurmd, the short host name is used. Raises SlurmError if slurmctld
    does not respond or has no such node, or if Slurm's commands are not installed.
    """
    if name and not NODE_NAME.match(name):
        raise SlurmError("gpu_slurm_node", "%r is not a valid name of a Slurm node" % name[:100], _NAME_CURE)
    name = (
        name
        or Slurm(run).name_from_slurmd()
        or record.only_node(state_directory)
        or os.uname().nodename.partition(".")[0]
    )
    where = "Slurm node %s" % name
    shown = _answer(run, where, "scontrol", "--oneliner", "show", "node", name)
    configured = dict(_CONFIGURED.findall(_answer(run, where, "scontrol", "show", "config")))
    try:
        jobs = job_gres(run, name)
    except NoAnswerError as error:
        raise SlurmError(where, str(error), "Check that slurmctld responds on this host (scontrol ping).") from error
    values, node = fields(shown), parse_node(shown)
    return {
        "node": name,
        "version": configured.get("SLURM_VERSION", ""),
        "node_version": values.get("Version") or None,
        "state": node.state,
        "reason": node.reason,
        "started": values.get("SlurmdStartTime", ""),
        "gres": values.get("Gres", ""),
        "gres_types": configured.get("GresTypes", ""),
        "jobs": [
            {
                "id": job,
                "user": user,
                "gres": None
                if given is None
                else [{"name": kind, "count": count, "numbers": numbers} for kind, count, numbers in given],
            }
            for job, user, given in jobs
        ],
        "sockets": _number(values.get("Sockets", "")),
        "cores_per_socket": _number(values.get("CoresPerSocket", "")),
        "topology_plugin": configured.get("TopologyPlugin", ""),
        "cores": cores(Path(sys, "devices/system/cpu")),
        "minors": list(minors(Path(proc, "driver/nvidia/gpus"), Path(sys, "bus/pci/devices"))),
        "recorded": record.load(record.path_of(state_directory, name))["devices"],
        "capabilities": list(capabilities(Path(proc, "driver/nvidia-caps/mig-minors"), Path(dev, "nvidia-caps"))),
        "gres_conf": gres_conf(Path(configured.get("SLURM_CONF") or _SLURM_CONF).parent, name),
        "pad_problem": pad_problem(run, values.get("Partitions", ""), configured),
    }


def gres_conf(directory: Path, node: str) -> list[str]:
    """Return the lines of gres.conf about a node's gres/gpu, in order.

    Returns an empty list if a file cannot be read.
    """
    try:
        lines = conf.tree(
            lambda path: Path(path).read_text(encoding="utf-8", errors="replace"), str(directory), conf.GRES_CONF
        )
    except OSError:
        return []
    return conf.gpu_lines(lines, node)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _answer(run: Run, where: str, *command: str) -> str:
    try:
        text, problem = ask(run, list(command))
    except FileNotFoundError:
        raise SlurmError("this host", "%s is not installed" % command[0], "Install Slurm's client commands.") from None
    if text is not None:
        return text
    cure = "Check that slurmctld responds on this host (scontrol ping)."
    if "not found" in problem:
        cure = _NAME_CURE
    elif "error in file" in problem:
        cure = "Fix the named line."
    raise SlurmError(where, problem, cure)
