# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find accounts whose jobs would have fitted into smaller MIG instances. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Mapping, Sequence

from ...module_utils.catalogue import Model
from ..counted import counted
from .fitting import smallest_profile
from .usage_model import JobUse

#: Minimum number of jobs, of measured GPU hours, and minimum share of the held hours that must be measured.
_LEAST_JOBS, _LEAST_SECONDS, _LEAST_RATIO = 5, 24 * 3600, 0.8
#: Maximum number of sentences.
_MOST = 20


def advice(jobs: Sequence[JobUse], models: Mapping[str, Model]) -> tuple[str, ...]:
    """Return a sentence for each account and type of GPU whose jobs need less.

    `jobs` are all jobs of the window. `models` maps these jobs' device names to GPU models, except unknown models and
    parts of GPUs. All jobs of an account with a type count, because they request the same resource.
    """
    groups: dict[tuple[str, str], list[JobUse]] = defaultdict(list)
    for job in jobs:
        groups[(job.account, job.gres)].append(job)
    found = []
    for (account, gres), those in groups.items():
        kind, _colon, count = gres.rpartition(":")
        sentence = _advice(account, kind, those, models) if count == "1" else ""
        if sentence:
            found.append((-sum(job.held_gpu_seconds for job in those), sentence))
    return tuple(sentence for _held, sentence in sorted(found)[:_MOST])


def _advice(account: str, kind: str, jobs: Sequence[JobUse], models: Mapping[str, Model]) -> str:
    known = [job for job in jobs if job.used_gpu_seconds is not None and job.memory_max_bytes is not None]
    measured = sum(job.measured_gpu_seconds for job in known)
    held = sum(job.held_gpu_seconds for job in jobs)
    devices = {device for job in known for device in job.devices}
    keys = {models[device].key if device in models else "" for device in devices}
    if len(known) < _LEAST_JOBS or measured < max(_LEAST_SECONDS, _LEAST_RATIO * held) or len(keys) != 1 or "" in keys:
        return ""
    model = models[next(iter(devices))]
    memory = max(job.memory_max_bytes or 0.0 for job in known)
    compute = max(job.compute_max_ratio or 0.0 for job in known)
    profile = smallest_profile(model, memory, compute)
    if not profile:
        return ""
    return (
        "Account %s: %s with one GPU of type %s used at most %.1f GiB and %.0f %% of the compute. "
        "MIG instances of the profile %s would have been enough."
        % (account, counted(len(known), "job"), kind, memory / (1 << 30), 100 * compute, profile)
    )
