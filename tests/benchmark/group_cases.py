# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random packing problems with `near`, `apart` and workloads with several GPUs."""

from __future__ import annotations

import random

from ansible_collections.openfleet.gpu.plugins.plugin_utils.packing.model import (
    WHOLE,
    FleetGpu,
    Problem,
    Workload,
    mig,
)

WORKLOADS, HOSTS, HOST_GPUS, NODE_GPUS = 60, 8, 8, 4
#: Numbers of groups of workloads that are near each other, and apart.
GROUPS = 5
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def groups(seed: int) -> Problem:
    """Return 60 workloads for 64 GPUs.

    Half of the workloads are in groups, and 30 % need 2 or 4 GPUs.
    """
    rng = random.Random(seed)
    gpus = tuple(FleetGpu("h%d" % h, n, "A100-40GB", n // NODE_GPUS, 0) for h in range(HOSTS) for n in range(HOST_GPUS))
    return Problem(gpus, tuple(_workload("w%d" % n, rng) for n in range(WORKLOADS)))


def _workload(name: str, rng: random.Random) -> Workload:
    group = rng.random()
    word = "g%d" % rng.randrange(GROUPS)
    near, apart = (word, None) if group < 0.25 else (None, word) if group < 0.5 else (None, None)
    if rng.random() >= 0.3:
        return Workload(name, (mig(rng.choice(PROFILES)),), near=near, apart=apart)
    shape = WHOLE if rng.random() < 0.3 else mig(rng.choice(PROFILES[:3]))
    return Workload(name, (shape,), rng.choice([2, 2, 4]), rng.choice(["numa", "host"]), near, apart)
