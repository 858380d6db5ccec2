# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the smallest MIG profile with enough memory and compute."""

from __future__ import annotations

from typing import Iterable, Mapping

from ...module_utils.catalogue import Model, load_models
from .model import Finding

#: Headroom above the peaks of memory and compute, as for other workloads (docs/sizing.md).
_MEMORY_HEADROOM, _COMPUTE_HEADROOM = 1.15, 1.2
_MIB = 1 << 20
_OVERSIZED = ("oversized_memory", "oversized_compute")


def models_by_name() -> dict[str, Model]:
    """Return the shipped GPU models by NVML name."""
    return {board.name: model for model in load_models().values() for board in model.boards}


def smallest_profile(model: Model, memory_bytes: float, compute_ratio: float) -> str:
    """Return the smallest profile with headroom above these peaks.

    Returns "" if only the whole GPU has enough.
    """
    whole = max((profile.compute_slices for profile in model.profiles), default=0)
    fitting = [
        (profile.placement_size, profile.compute_slices, profile.name)
        for profile in model.profiles
        # Skip profiles with a suffix, which are for media and graphics.
        if profile.compute_slices < whole
        and profile.name.endswith("gb")
        and model.profile_memory_mib(profile) * _MIB >= memory_bytes * _MEMORY_HEADROOM
        and profile.compute_slices >= compute_ratio * _COMPUTE_HEADROOM * whole
    ]
    return min(fitting)[2] if fitting else ""


def sufficient_profiles(findings: Iterable[Finding], models: Mapping[str, Model]) -> dict[str, str]:
    """Return the smallest sufficient profile of each oversized whole GPU.

    The keys are IDs of findings. `models` maps GPU names to models. GPUs without MIG and of unknown models are left out.
    """
    found = {}
    for finding in findings:
        subject, memory = finding.holding.subject, finding.holding.memory
        compute = finding.holding.compute or finding.holding.busy
        model = models.get(subject.model)
        if finding.verdict.word not in _OVERSIZED or subject.kind != "gpu" or model is None or not model.profiles:
            continue
        if memory is not None and memory.max is not None and compute is not None and compute.p99 is not None:
            found[finding.id] = smallest_profile(model, memory.max, compute.p99)
    return found
