# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find inventory groups with misspelt names. Pure."""

from __future__ import annotations

import difflib
from typing import Any, Mapping, Sequence

from ..host_values import text

#: Minimum similarity between a group's name and a known name.
_RATIO = 0.8


def misspelt(groups: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return a text with a sentence for each misspelt group, or "".

    A misspelt group has hosts, and its name is similar to a known group's.
    """
    sentences = []
    for name, hosts in sorted(groups.items()):
        # Treat gpu-hosts and GPU_Hosts like gpu_hosts.
        near = difflib.get_close_matches(name.lower().replace("-", "_"), known, 1, _RATIO)
        if hosts and near and name not in known:
            sentences.append("The inventory has the group %s: did you mean %s?" % (text(name, 80), near[0]))
    return " ".join(sentences)
