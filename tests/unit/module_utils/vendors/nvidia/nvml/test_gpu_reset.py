# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the error messages for GPUs that cannot be reset."""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ResetRefusedError
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml import reset

UUID = "GPU-5c89d3fa-0000-4000-8000-000000000001"


def test_missing_nvidia_smi_names_its_package(monkeypatch):
    def missing(command, **_options):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(reset, "run_tool", missing)
    with pytest.raises(ResetRefusedError) as refused:
        reset.reset_gpu(UUID, simulated=False)
    assert "nvidia-smi is not installed" in refused.value.problem
    assert refused.value.cure.startswith("Install it (nvidia-utils")


def test_refusal_quotes_the_tool(monkeypatch):
    answer = subprocess.CompletedProcess([], 19, "GPU is currently in use\n", "by another process.\n")
    monkeypatch.setattr(reset, "run_tool", lambda command, **_options: answer)
    with pytest.raises(ResetRefusedError) as refused:
        reset.reset_gpu(UUID, simulated=False)
    assert refused.value.problem.endswith("refused: GPU is currently in use by another process")
    assert refused.value.cure == "Stop the processes that use the GPU and run again, or reboot the host."
