# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the client limits of MPS with NVIDIA's documents."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps.rules import limits_bind, most_clients


@pytest.mark.parametrize(
    ("capability", "driver", "most"),
    [
        # nvidia-cuda-mps-control(1) of release 550: 16 clients up to compute capability 6.x, 48 from 7.0, none below
        # 3.5.
        ("3.0", "470.256.02", 0),
        ("3.5", "470.256.02", 16),
        ("6.1", "595.10", 16),
        ("7.0", "550.163.01", 48),
        ("9.0", "580.95.05", 48),
        # MPS documentation of release 590 (CUDA 13.1): the limit is 60 clients, no longer 48.
        ("9.0", "590.44.01", 60),
        ("10.0", "615.10.02", 60),
        # If a release number cannot be parsed, it is no reason to refuse a request.
        ("9.0", "", 60),
        ("9.0", None, 60),
        ("6.1", None, 16),
        (None, "580.95.05", None),
        ("?", "580.95.05", None),
    ],
)
def test_clients_of_a_gpu(capability, driver, most):
    assert most_clients(capability, driver) == most


@pytest.mark.parametrize(
    ("slices", "driver", "most"),
    [
        # MIG user guide, "CUDA Concurrency Mechanisms": the limit is proportional to the size of the compute instance.
        ((7, 7), "580.95.05", 48),
        ((3, 7), "580.95.05", 20),
        ((1, 7), "580.95.05", 6),
        ((1, 7), "590.44.01", 8),
        ((2, 4), "580.95.05", 24),
        ((2, 4), None, 30),
        ((1, 100), "580.95.05", 1),
    ],
)
def test_clients_of_a_mig_device(slices, driver, most):
    assert most_clients("9.0", driver, slices) == most


def test_limits_apply_since_volta():
    assert [limits_bind(c) for c in ("6.1", "7.0", "9.0", None)] == [False, True, True, None]
