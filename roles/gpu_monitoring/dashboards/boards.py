# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much memory GPUs have that can be divided by MIG, of the collection's own models.

Exporters tell of a divided GPU's instances alone, so that what is not carved is in no series.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

MODELS = Path(__file__).parents[3] / "plugins" / "module_utils" / "models"


def boards_by_memory():
    """MiB to a regular expression of the boards' names; exporters write them with NVIDIA in front or without."""
    names = {}
    for path in sorted(MODELS.glob("*.json")):
        model = json.loads(path.read_text(encoding="utf-8"))
        if model["mig_capable"]:
            names.setdefault(model["memory_total_mib"], set()).update(one["name"] for one in model["boards"])
    return {size: "(NVIDIA )?(%s)" % "|".join(sorted(map(_short, found))) for size, found in sorted(names.items())}


def _short(name):
    short = re.sub("^NVIDIA ", "", name)
    if not re.fullmatch(r"[\w -]+", short):
        raise ValueError("%s: %r: the name of this board wants escapes in a regular expression" % (MODELS, name))
    return short
