# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the measurements of measure.py. These functions have no side effects."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import frameworks
from exporter import PROCESSES, SIGNALS

from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware.outcome import (
    DIFFERS,
    PASSED,
    Check,
    compared,
    not_run,
)

LOAD, LIMITER, MPS = "load", "vGPU limiter", "MPS"
AREAS = {"load": LOAD, "limiter": LIMITER, "frameworks": frameworks.AREA, "mps": MPS}
#: Minimum utilization of a busy GPU. The period that NVML's value covers may begin before the load.
BUSY_PERCENT = 50
#: Tolerance of shares. A tenant can save a tenth of a second of GPU time, and a turn takes 20 ms (docs/vgpu-limits.md).
SHARE_TOLERANCE_POINTS = 5.0
#: Time of a launch: some microseconds. The limiter adds some nanoseconds (docs/vgpu-tested.md). Python adds much more
#: to each call.
LAUNCH_SECONDS = 1e-6
OUT_OF_MEMORY = 2
#: Unit in which the driver allocates memory.
GRANULARITY_BYTES = 2 << 20
#: If kernels take a smaller fraction of their expected duration, the driver is a stub without a GPU.
LEAST_OF_LENGTH = 0.5


def checks(index: int, measured: Mapping[str, Any], simulated: bool, kernel_seconds: float) -> Iterator[Check]:
    """Yield a check for each measurement.

    `kernel_seconds` is the duration of the measured kernels without a limit.
    """
    for area, title in AREAS.items():
        found = measured[area]
        if isinstance(found, str):
            yield not_run(title, index, "all", found)
        elif area == "load":
            yield from _load(index, found, simulated)
        elif area == "limiter":
            yield from _limiter(index, found, kernel_seconds, _context_bytes(measured["load"]))
        elif area == "frameworks":
            yield from frameworks.checks(index, found)
        else:
            yield from _mps(index, found)


def none(index: int | None, reason: str) -> Iterator[Check]:
    """Yield a check with the outcome "not run" for each area."""
    for title in AREAS.values():
        yield not_run(title, index, "all", reason)


def _load(index: int, found: Mapping[str, Any], simulated: bool) -> Iterator[Check]:
    rest, busy, after = found["rest"], found["busy"], found["after"]
    if simulated:
        yield not_run(LOAD, index, "all", "a simulated NVML does not see CUDA programs")
        return
    yield _within(
        LOAD, index, "NVML lists the process", found["pid"] in busy["processes"], found["pid"], list(busy["processes"])
    )
    yield _within(
        LOAD, index, "the process has the GPU's node open", bool(found["nodes"]), "/dev/nvidia*", found["nodes"]
    )
    yield from series(index, found["series"])
    yield from _holders(index, found["holders"], busy["processes"].get(found["pid"]))
    watts, mhz = rest["power_watts"] or 0, rest["sm_mhz"] or 0
    rules = (
        ("utilisation under load", "utilization", busy, lambda value: value >= BUSY_PERCENT, "at least %d %%" % BUSY_PERCENT),
        ("power under load", "power_watts", busy, lambda value: value > watts, "more than %s W" % watts),
        ("SM clock under load", "sm_mhz", busy, lambda value: value >= mhz, "at least %s MHz" % mhz),
        ("utilisation afterwards", "utilization", after, lambda value: value <= 1, "at most 1 %"),
    )  # fmt: skip
    for what, key, state, holds, expected in rules:
        value = state[key]
        if value is None:
            yield not_run(LOAD, index, what, "the GPU does not answer")
        else:
            yield _within(LOAD, index, what, holds(value), expected, value)


def series(index: int, found: Mapping[str, Mapping[str, float] | str]) -> Iterator[Check]:
    """Judge the embedded exporter's series that the audit uses as signs of work."""
    reason = next((value for value in found.values() if isinstance(value, str)), None)
    if reason is not None:
        yield not_run(LOAD, index, "series of the embedded exporter", reason)
        return
    for name, most in SIGNALS.items():
        for state, word in (("rest", "at rest"), ("busy", "under load"), ("after", "afterwards")):
            value, what = found[state].get(name), "%s %s" % (name, word)
            if value is None:
                yield not_run(LOAD, index, what, "the exporter does not have this series for this GPU")
            elif state == "busy":
                least = most * BUSY_PERCENT / 100
                yield _within(LOAD, index, what, value >= least, "at least %g" % least, "%g" % value)
            else:
                yield _within(LOAD, index, what, value <= most / 100, "at most %g" % (most / 100), "%g" % value)
    before, now = (found[state].get(PROCESSES) for state in ("rest", "busy"))
    what = "%s, added by the load" % PROCESSES
    if None in (before, now):
        yield not_run(LOAD, index, what, "the exporter does not have this series for this GPU")
    else:
        yield compared(LOAD, index, what, 1, int(now - before))


def _holders(index: int, found: Mapping[str, Any] | str, used_bytes: int | None) -> Iterator[Check]:
    """Judge how gpu_info and `gpu-layout holders` report the process.

    NVML lists the process, so its kind must be `process`. The kind for an open device node would be wrong.
    """
    if isinstance(found, str):
        yield not_run(LOAD, index, "holders", found)
        return
    yield compared(LOAD, index, "gpu_info: the process as a holder", ["process"], found["kinds"])
    what = "gpu_info: memory of the process"
    if used_bytes is None:
        yield not_run(LOAD, index, what, "NVML does not report it")
    else:
        yield compared(LOAD, index, what, [used_bytes], found["bytes"])
    what = "gpu-layout holders: the process"
    if found["command"] is None:
        yield not_run(LOAD, index, what, "needs root")
    else:
        yield compared(LOAD, index, what, ["process"], found["command"])


def _mps(index: int, found: Mapping[str, Any]) -> Iterator[Check]:
    client, direct, listed = found["pid"], found["direct"], found["nvml"]
    yield _within(MPS, index, "the daemon lists the client", str(client) in found["clients"], client, found["clients"])
    what = "NVML distinguishes the client from a program without MPS"
    if listed["mps"] is None:
        yield not_run(MPS, index, what, "NVML lists no clients of MPS")
        return
    # NVML must also list MPS clients as compute processes, because their memory is read from that list
    # (techniques/vgpu/agent_nvml.py).
    distinct = client in listed["mps"] and direct not in listed["mps"]
    both = {client, direct} <= set(listed["compute"])
    expected = "mps: [%d], compute: [%d, %d]" % (client, client, direct)
    yield _within(MPS, index, what, distinct and both, expected, "mps: %(mps)s, compute: %(compute)s" % listed)


def _context_bytes(load: Mapping[str, Any] | str) -> int | None:
    """Return the memory in bytes of a program without allocations.

    This is the memory of the program's context. The first context costs no quota.
    """
    return None if isinstance(load, str) else load["busy"]["processes"].get(load["pid"])


def _limiter(index: int, found: Mapping[str, Any], kernel_seconds: float, context_bytes: int | None) -> Iterator[Check]:
    quota = found["quota"]
    for kind, memory in found["memory"].items():
        what = "%s memory" % kind
        if isinstance(memory, str):
            yield not_run(LIMITER, index, what, memory)
            continue
        yield _within(
            LIMITER,
            index,
            "%s: bytes allocated by a tenant" % what,
            memory["held"] <= quota,
            "at most %d" % quota,
            memory["held"],
        )
        yield compared(LIMITER, index, "%s: code of the refusal" % what, OUT_OF_MEMORY, memory["code"])
        yield compared(LIMITER, index, "%s: size of the card shown to the tenant" % what, quota, memory["total"])
        lost = memory["free"] - memory["free_after"]
        yield _within(LIMITER, index, "%s: bytes that were not freed" % what, lost <= GRANULARITY_BYTES,
                      "at most %d" % GRANULARITY_BYTES, lost)  # fmt: skip
        if memory["card"] is not None and kind != "managed" and context_bytes is not None:
            most_on_card = quota + context_bytes + GRANULARITY_BYTES
            yield _within(LIMITER, index, "%s: bytes on the card by NVML" % what, memory["card"] <= most_on_card,
                          "at most %d" % most_on_card, memory["card"])  # fmt: skip
    yield _judged(index, "two processes of a tenant: total bytes", found["two_processes"],
                  lambda said: (said["held"] <= quota, "at most %d" % quota, said["held"]))  # fmt: skip
    yield _judged(index, "bytes charged for a context and a module", found["module"],
                  lambda said: (abs(said["charged"] - said["card"]) <= GRANULARITY_BYTES,
                                "%d, as NVML counts" % said["card"], said["charged"]))  # fmt: skip
    yield _judged(index, "added cost of a launch of an unthrottled tenant", found["launch_seconds"], _launch)
    yield from _shares(index, found, kernel_seconds)


def _launch(said: Mapping[str, float]) -> tuple[bool, str, str]:
    added = said["tenant"] - said["bare"]
    text = "%.2f us (bare %.2f us, with a share %.2f us)" % tuple(
        1e6 * seconds for seconds in (added, said["bare"], said["throttled"])
    )
    return added <= LAUNCH_SECONDS, "at most %g us" % (1e6 * LAUNCH_SECONDS), text


def _shares(index: int, found: Mapping[str, Any], kernel_seconds: float) -> Iterator[Check]:
    bare = found["bare_seconds"]
    reason = bare if isinstance(bare, str) else ""
    if not reason and bare["took"] < LEAST_OF_LENGTH * kernel_seconds:
        reason = "kernels take no time on this driver, so it is a stub"
    for percent, said in found["shares"].items():
        what = "share of %s percent" % percent
        if reason:
            yield not_run(LIMITER, index, what, reason)
            continue

        def judged(said: Mapping[str, float], wanted: float = float(percent)) -> tuple[bool, str, str]:
            share = 100 * bare["took"] / said["took"]
            close = abs(share - wanted) <= SHARE_TOLERANCE_POINTS
            return close, "%g within %g points" % (wanted, SHARE_TOLERANCE_POINTS), "%.1f" % share

        yield _judged(index, what, said, judged)
    what = "two tenants of 30 and 70 percent: share of the first"
    if reason:
        yield not_run(LIMITER, index, what, reason)
    else:
        yield _judged(index, what, found["two_tenants"], _part)


def _part(said: Mapping[str, Any]) -> tuple[bool, str, str]:
    first, second = said["kernels"]
    part = 100 * first / max(first + second, 1)
    return abs(part - 30) <= SHARE_TOLERANCE_POINTS, "30 within %g points" % SHARE_TOLERANCE_POINTS, "%.1f" % part


def _judged(index: int, what: str, said: Any, judge: Any) -> Check:
    if isinstance(said, str):
        return not_run(LIMITER, index, what, said)
    return _within(LIMITER, index, what, *judge(said))


def _within(area: str, index: int, what: str, holds: bool, expected: Any, found: Any) -> Check:
    return Check(area, index, what, PASSED if holds else DIFFERS, str(expected), str(found))
