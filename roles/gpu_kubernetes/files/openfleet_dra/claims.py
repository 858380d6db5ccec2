# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the scheduler has allocated for a ResourceClaim. Pure functions."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from .devices import DRIVER, MEMORY, PERCENT, gpu_uuid, tenant_device

_MIB = 1 << 20
_QUANTITY = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,15})?)(?:(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)|[eE]([+-]?[0-9]{1,3}))?")
_UNITS = {
    **{unit: Fraction(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    "m": Fraction(1, 1000),
}
_CURE = "Delete the pod and its claim."


class ClaimError(Exception):
    """The claim cannot be prepared. The text becomes an event of the pod."""


class Result(NamedTuple):
    """A device that the scheduler has allocated for a claim's request."""

    request: str
    device: str
    share: str


class Pod(NamedTuple):
    """A pod that uses the claim."""

    name: str
    uid: str


class Lease(NamedTuple):
    """A quota of memory and SMs on each of the GPUs."""

    uuids: Tuple[str, ...]
    memory_bytes: int
    sm_percent: int
    results: Tuple[Result, ...]


class Tenant(NamedTuple):
    """A tenant of the layout, with its CDI devices."""

    cdi: Tuple[str, ...]
    results: Tuple[Result, ...]


def quantity(text: Any) -> int:
    """Return a quantity of the API as an integer.

    Raises ClaimError if it is not a whole number.
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ClaimError('"%.40s" is not a quantity. %s' % (text, _CURE))
    number, unit, exponent = match.groups()
    value = Fraction(number) * _UNITS.get(unit or "", Fraction(1)) * Fraction(10) ** int(exponent or 0)
    if value.denominator != 1:
        raise ClaimError('"%.40s" is not a whole number. %s' % (text, _CURE))
    return value.numerator


def read(claim: Mapping[str, Any], node: str, pool: Mapping[str, Any]) -> Any:
    """Return the Lease or the Tenant that a claim has on this node, or None.

    `pool` is the answer of the lease service. Raises ClaimError if one container cannot use the claim's devices
    together, or if a tenant is unknown. The lease service checks the GPUs, because a lease can be on a GPU that is not
    offered at the moment.
    """
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = [
        each
        for each in (allocation.get("devices") or {}).get("results") or ()
        if (each.get("driver"), each.get("pool")) == (DRIVER, node)
    ]
    if not results:
        return None
    if any(each.get("adminAccess") for each in results):
        raise ClaimError("adminAccess is not supported. Remove it from the claim.")
    if len({each["request"] for each in results}) > 1:
        raise ClaimError("it has several requests for %s. Use one request, with count for several GPUs." % DRIVER)
    tenants = {tenant_device(tenant["name"]): tenant for tenant in pool["tenants"]}
    allocated = tuple(Result(each["request"], each["device"], each.get("shareID") or "") for each in results)
    names = [each.device for each in allocated]
    unknown = [name for name in names if name not in tenants and not gpu_uuid(name)]
    if unknown:
        raise ClaimError("the node no longer offers the device %s. %s" % (unknown[0], _CURE))
    if names[0] in tenants:
        if len(names) > 1:
            raise ClaimError("it has several tenants, and a container has only one. Request one device.")
        return Tenant(tuple(tenants[names[0]]["cdi"]), allocated)
    if any(name in tenants for name in names):
        raise ClaimError("it has a tenant and a GPU, and a container has only one quota. Request one device.")
    if len(set(names)) < len(names):
        raise ClaimError(
            "it has several shares of one GPU. Request a larger share, or add the constraint distinctAttribute."
        )
    sizes = {_size(each) for each in results}
    if len(sizes) > 1:
        raise ClaimError("its GPUs have different sizes. Request equal sizes.")
    memory_bytes, percent = sizes.pop()
    return Lease(tuple(map(gpu_uuid, names)), memory_bytes, percent, allocated)


def pods(claim: Mapping[str, Any]) -> List[Pod]:
    """Return the pods that use a claim."""
    users = (claim.get("status") or {}).get("reservedFor") or ()
    return [
        Pod(each["name"], each["uid"])
        for each in users
        if (each.get("apiGroup") or "", each["resource"]) == ("", "pods")
    ]


def _size(result: Mapping[str, Any]) -> Tuple[int, int]:
    """Return a share's memory in bytes and SM percent.

    The scheduler writes the consumed capacity, with defaults and rounding.
    """
    consumed = result.get("consumedCapacity") or {}
    if MEMORY not in consumed or PERCENT not in consumed:
        raise ClaimError("the scheduler consumed no capacity. Enable the feature gate DRAConsumableCapacity.")
    memory_bytes, percent = quantity(consumed[MEMORY]), quantity(consumed[PERCENT])
    if memory_bytes < _MIB or memory_bytes % _MIB or not 1 <= percent <= 100:
        raise ClaimError("%d bytes and %d %% are no valid quota. %s" % (memory_bytes, percent, _CURE))
    return memory_bytes, percent


def prepared(pool_name: str, found: Any, cdi: Tuple[str, ...]) -> List[Dict[str, Any]]:
    """Return the devices for the kubelet.

    The first device has the CDI devices, because all results belong to one request.
    """
    return [
        {
            "request_names": [each.request],
            "pool_name": pool_name,
            "device_name": each.device,
            "cdi_device_ids": list(cdi) if number == 0 else [],
            "share_id": each.share,
        }
        for number, each in enumerate(found.results)
    ]
