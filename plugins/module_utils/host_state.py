# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report GPUs with their holders, for modules and the command. Free of Ansible."""

from __future__ import annotations

from typing import Any, Iterable

from .holders import blocking
from .model import Holder, Host, to_data


def gpus(host: Host, holders: Iterable[Holder] | None, profiles: bool = False) -> list[dict[str, Any]]:
    """Return the GPUs and their instances as data, each with its holders; None for these where nobody looked."""
    seen = None if holders is None else tuple(holders)
    data: list[dict[str, Any]] = to_data(host.gpus)
    for gpu in data:
        gpu["holders"] = None if seen is None else to_data(blocking(seen, gpu["uuid"]))
        if not profiles:
            del gpu["mig"]["profiles"]
        for instance in gpu["mig"]["instances"]:
            in_the_way = None if seen is None else to_data(blocking(seen, gpu["uuid"], instance["id"]))
            instance["holders"] = in_the_way
    return data
