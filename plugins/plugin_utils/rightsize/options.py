# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the settings of right-sizing."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

from ..audit.options import known_keys
from ..packing.model import POLICIES, Rules
from ..sizing.model import Policy
from .model import REACHES, RightsizeError
from .rearrange import Limits

#: Keys of `gpu_rightsize_packing`. The limits for moved workloads and destroyed instances are separate variables.
_PACKING = ("policy", "reserve_gpus", "headroom_memory_percent", "headroom_sm_percent", "seconds", "seed", "workers")


def limits(reach: str, most_moved: Any, most_destroyed: Any, packing: Mapping[str, Any]) -> Limits:
    """Return the limits of a proposal. Raises RightsizeError and OptionError."""
    if reach not in REACHES:
        raise RightsizeError("reach", "%r is invalid" % (reach,), "Use one of %s." % ", ".join(REACHES))
    known_keys("packing", packing, _PACKING)
    values = dict(packing)
    if values.get("policy", POLICIES[0]) not in POLICIES:
        raise RightsizeError(
            "packing.policy", "%r is invalid" % (values["policy"],), "Use one of %s." % ", ".join(POLICIES)
        )
    reserve = values.pop("reserve_gpus", {})
    if not isinstance(reserve, Mapping):
        raise RightsizeError(
            "packing.reserve_gpus",
            "%r is not a mapping" % (reserve,),
            "Write numbers of GPUs by model: {H100-80GB: 2}.",
        )
    for name in ("headroom_memory_percent", "headroom_sm_percent", "seed", "workers"):
        if name in values:
            values[name] = _count("packing.%s" % name, values[name])
    seconds = values.pop("seconds", Limits.seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise RightsizeError("packing.seconds", "%r is not a time" % (seconds,), "Write seconds, for example 60.")
    rules = Rules(
        **values, reserve_gpus={key: _count("packing.reserve_gpus.%s" % key, n) for key, n in reserve.items()}
    )
    return Limits(
        None if most_moved is None else _count("max_moved", most_moved),
        None if most_destroyed is None else _count("max_destroyed", most_destroyed),
        reach,
        float(seconds),
        rules,
    )


def share_of_workloads(value: Any) -> float:
    """Return `gpu_rightsize_confidence` as a number.

    Raises RightsizeError if it is out of range.
    """
    try:
        share = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        share = float("nan")
    if not 0.5 <= share < 1:
        raise RightsizeError(
            "confidence", "%r is not a share from 0.5 to below 1" % (value,), "Write a number, for example 0.99."
        )
    return share


def policy(given: Mapping[str, Any], confidence: Any = Policy.confidence) -> Policy:
    """Return the sizing policy, with the inventory's changes applied to the defaults.

    `confidence` is the share of workloads that must stay within their memory. Raises RightsizeError, OptionError and
    SizingError.
    """
    known_keys("sizing", given, [item.name for item in dataclasses.fields(Policy) if item.name != "confidence"])
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RightsizeError("sizing.%s" % name, "%r is not a number" % (value,), "Write a number.")
    return Policy(**{**given, "confidence": share_of_workloads(confidence)})


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RightsizeError(where, "%r is not an integer of at least 0" % (value,), "Write a number without quotes.")
    return value
