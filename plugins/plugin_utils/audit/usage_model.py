# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dataclasses of the use by jobs, users and accounts.

All are frozen. An unknown figure is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

#: How a job's devices are known. Empty if they are unknown.
HOLDERS, EXPORTER, WHOLE = "holders", "exporter", "whole node"


@dataclass(frozen=True)
class JobUse:
    """Use by one run of a job within the window.

    GPU seconds are added over all of the job's GPUs or MIG instances. Use is the active share of the SMs over time
    (docs/audit.md, Compute). `measured_gpu_seconds` is the part of `held_gpu_seconds` for which the use is known. If it
    is 0, the use is None. `efficiency_ratio` is `used_gpu_seconds` divided by `measured_gpu_seconds`.
    `memory_max_bytes` is the peak of the fullest device, and `compute_max_ratio` the highest average of an interval.
    `evidence` says how the devices are known. If they are unknown, `unknown` says why.
    """

    name: str
    user: str
    account: str
    state: str
    gres: str
    nodes: tuple[str, ...]
    start_seconds: float
    end_seconds: float | None
    held_gpu_seconds: float
    measured_gpu_seconds: float = 0.0
    used_gpu_seconds: float | None = None
    efficiency_ratio: float | None = None
    memory_max_bytes: float | None = None
    compute_max_ratio: float | None = None
    devices: tuple[str, ...] = ()
    evidence: str = ""
    unknown: str = ""


@dataclass(frozen=True)
class Total:
    """Use by all jobs of a user or an account, as in JobUse."""

    name: str
    jobs: int
    held_gpu_seconds: float
    measured_gpu_seconds: float = 0.0
    used_gpu_seconds: float | None = None
    efficiency_ratio: float | None = None
    memory_max_bytes: float | None = None
    #: Held seconds by type of GPU or MIG instance, as Slurm names it.
    held_by_type: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Use by jobs, users and accounts from `since_seconds` to `end_seconds`.

    Lists start with the highest GPU seconds. `jobs` is shortened, but `job_count` counts all jobs. `shared_jobs` counts
    jobs with shards or MPS percentages, and `other_jobs` those on nodes that the audit does not know. These jobs count
    nowhere else.
    """

    sources: tuple[str, ...]
    since_seconds: float
    end_seconds: float
    job_count: int
    jobs: tuple[JobUse, ...]
    users: tuple[Total, ...]
    accounts: tuple[Total, ...]
    shared_jobs: int = 0
    other_jobs: int = 0
    advice: tuple[str, ...] = ()
