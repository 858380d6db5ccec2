# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Total memory of MIG-capable GPUs, from the collection's model files.

Exporters report only the instances of a partitioned GPU, so no series contains the GPU's unassigned memory.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

MODELS = Path(__file__).parents[3] / "plugins" / "module_utils" / "models"


def boards_by_memory():
    """Map memory in MiB to a regular expression of board names.

    The expression accepts names with and without the prefix NVIDIA.
    """
    names = {}
    for path in sorted(MODELS.glob("*.json")):
        model = json.loads(path.read_text(encoding="utf-8"))
        if model["mig_capable"]:
            names.setdefault(model["memory_total_mib"], set()).update(one["name"] for one in model["boards"])
    return {size: "(NVIDIA )?(%s)" % "|".join(sorted(map(_short, boards))) for size, boards in sorted(names.items())}


def _short(name):
    short = re.sub("^NVIDIA ", "", name)
    if not re.fullmatch(r"[\w -]+", short):
        raise ValueError("%s: %r: this board name must be escaped in a regular expression" % (MODELS, name))
    return short
