# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the driver functions that CuPy and numba-cuda request.

Each function that allocates memory or launches work must be intercepted, or listed as an exception. test_requests.py
compares the answers. The lists of requests were recorded on the stub, as far as the packages run on it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import DEADLINE, SOURCE, Tenant
from tests.limiter.test_reach import rows
from tests.limiter.test_requests import LAYERS, requests, wanted

#: Words in NVIDIA's function names that suggest use of GPU memory or GPU time.
TAKES = re.compile(
    "Alloc|Array.*Create|CtxCreate|GreenCtx|Launch|Import|Export|Register|Instantiate|Load|LinkCreate|Multicast"
    "|LogicalEndpoint|MemMap|MemPool|Batch|Fabric|External|Memset|Memcpy|Ipc|ConditionalHandle|SmResource"
)
#: Functions that match TAKES but are not intercepted. Each pattern has the row of docs/vgpu-enforced.md that gives the
#: reason. The first pattern that matches a function counts.
REASONS = {
    "^cuMem(Alloc)?Host|^cuMemFreeHost": "pinned host memory",
    "External|^cuGraphics|^cuGL|^cuVDPAU|EGL": "memory of graphics APIs",
    "^cuGreenCtx|SmResource|GreenCtx": "green contexts",
    "^cuIpc|^cuMem(Pool)?Import": "imported memory, IPC",
    "^cuMem(Pool)?Export": "exported physical memory",
    "^cuMulticast": "multicast objects",
    "^cuLogicalEndpoint|^cuFabric|^cuCoredump|^cuTensorMapSetAllocationClass": "functions newer than CUDA 13.0",
    "^cuGetExportTable": "private functions of the driver",
    "^cuModule|^cuLibrary|^cuLink|^cuFunc": "modules",
    "^cuGraph(Add|Mem|Exec|Instantiate|Conditional)|^cuGraph.*Node": "memory that graphs allocate",
    "^cuMemMapArrayAsync": "sparse arrays",
    "^cuMem(Advise|Prefetch|Discard)": "managed memory beyond the quota",
    "^cuMemcpy|^cuMemset|^cuMemBatchDecompress|^cuStreamBatchMemOp|^cuLaunchHostFunc": "copies, memset",
    "^cuDevice(Get|Set)(Default)?MemPool|^cuMem(Get|Set)(Default)?MemPool|^cuMemPool": "plain, pitched, managed memory",
}
#: These functions allocate and launch nothing. They query existing memory or register callbacks.
HARMLESS = re.compile(
    "Get(Allocation)?(Granularity|Properties)|RegisterAsyncNotification|LogsRegister|LogsUnregister|GetLoadingMode"
    "|GetMemoryRequirements|^cuCtxGet|^cuStreamGetGreenCtx|^cuDeviceGetFabric"
)


def unhooked(path: Path) -> set[str]:
    """Return the requested functions that are not intercepted, by exported name."""
    hooks = set(re.findall(r"^HOOK\((\w+)", (SOURCE / "driver/hooks.h").read_text(), re.MULTILINE))
    return {wanted(*request) or request[0] for request in requests(path)} - hooks


@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_not_intercepted_has_a_row(layer: str) -> None:
    documented = [what for what, *_ in rows()]
    taking = [one for one in sorted(unhooked(LAYERS[layer])) if TAKES.search(one) and not HARMLESS.search(one)]
    reasons = {one: next((row for words, row in REASONS.items() if re.search(words, one)), "") for one in taking}
    missing = [one for one, row in reasons.items() if not row or not any(what.startswith(row) for what in documented)]
    assert not missing, "neither intercepted nor in the table of docs/vgpu-enforced.md"


PROGRAMS = {
    "cupy": "import cupy; print(cupy.__version__)\ntry: cupy.cuda.runtime.getDeviceCount()\n"
    "except cupy.cuda.runtime.CUDARuntimeError: pass",
    "numba-cuda": "import numba_cuda; print(numba_cuda.__version__)\nfrom cuda.bindings import driver; driver.cuInit(0)",
}


@pytest.mark.skipif(not os.environ.get("OPENFLEET_DRIVER_LAYERS"), reason="OPENFLEET_DRIVER_LAYERS names no folder")
@pytest.mark.parametrize("layer", LAYERS)
def test_the_packages_ask_for_what_is_listed(tenant: Tenant, tmp_path: Path, layer: str) -> None:
    """Compare the lists with the requests of cupy-cuda13x and numba-cuda[cu13].

    pip must have installed the listed versions of both in one folder.
    """
    package, _, version = layer.rpartition("-")
    settings = {"STUB_REQUESTS": str(tmp_path / "asked"), "PYTHONPATH": os.environ["OPENFLEET_DRIVER_LAYERS"]}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[package]],
        env=tenant.environment(preload=False, **settings),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    if not done.stdout.startswith(f"{version}."):
        pytest.skip(f"{package} {done.stdout.strip()} is not listed")
    lines = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
    seen = {(line[0], int(line[1]), int(line[2])) for line in lines if len(line) == 3}
    assert seen == set(requests(LAYERS[layer]))
