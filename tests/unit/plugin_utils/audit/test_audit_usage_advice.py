# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find accounts whose jobs would have fitted into smaller MIG instances."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.usage_advice import advice
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.usage_model import JobUse

GIB = 1 << 30
HOURS = 10 * 3600.0
H100 = next(model for model in load_models().values() if model.name == "NVIDIA H100 80GB HBM3")
MODELS = {"n gpu 0": H100}
JOB = JobUse(
    "7", "alice", "team-a", "COMPLETED", "h100:1", ("n",), 0.0, HOURS, HOURS, HOURS, HOURS / 20, 0.05, 6 * GIB, 0.09,
    ("n gpu 0",), "exporter",
)  # fmt: skip


def told(**more):
    return advice([dataclasses.replace(JOB, **more)] * 6, MODELS)


def test_account_that_uses_little_is_named_with_the_profile():
    assert told() == (
        "Account team-a: 6 jobs with one GPU of type h100 used at most 6.0 GiB and 9 % of the compute. MIG instances of the "
        "profile 1g.10gb would have been enough.",
    )


@pytest.mark.parametrize(
    ("more", "profile"),
    [
        ({"memory_max_bytes": 9 * GIB}, "1g.20gb"),
        ({"compute_max_ratio": 0.2}, "2g.20gb"),
        ({"memory_max_bytes": 30 * GIB}, "3g.40gb"),
        ({"compute_max_ratio": 0.4}, "4g.40gb"),
    ],
)
def test_profile_has_headroom(more, profile):
    (sentence,) = told(**more)
    assert "profile %s " % profile in sentence


@pytest.mark.parametrize(
    "more",
    [
        {"memory_max_bytes": 60 * GIB},
        {"compute_max_ratio": 0.95},
        {"memory_max_bytes": None},
        {"used_gpu_seconds": None, "memory_max_bytes": None},
        {"gres": "h100:2"},
        {"measured_gpu_seconds": 0.5 * HOURS},
        {"measured_gpu_seconds": 3600.0, "held_gpu_seconds": 3600.0},
        {"devices": ("n gpu 1",)},
    ],
)
def test_nothing_is_advised_without_certainty(more):
    assert told(**more) == ()


def test_one_job_that_needs_the_gpu_is_enough_to_keep_it():
    assert advice([*[JOB] * 20, dataclasses.replace(JOB, memory_max_bytes=70 * GIB)], MODELS) == ()
    assert advice([JOB] * 3, MODELS) == ()
