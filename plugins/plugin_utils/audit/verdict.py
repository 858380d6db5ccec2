# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge a holding: return one verdict with its reason. Pure.

Missing data never counts as zero. A verdict against a holder is about a period, for all of which samples must exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..counted import counted
from ..idle.rule import Policy, threshold_seconds
from ..idle.signals import SIGNALS
from .holdings import is_held, is_notebook_holder, runs_processes
from .ledger import HOURS_PER_MONTH
from .model import Holding, Stat, Verdict
from .resting import Resting, duration, resting
from .series import HARDLY_SECONDS, QUIET_BUSY_RATIO

#: A subject without samples for this time gets the verdict no_data, because it was removed or is not scraped any more.
#: The time of the last sample is accurate to half an hour within the last day, and to six hours before that.
_SILENT_SECONDS = 3 * 3600.0


#: Minimum share of memory in use on a GPU with a loaded model. A context alone uses less.
_LOADED_RATIO = 0.1
#: If kernels ran in more than this share of a week's hours, they may be work, even if each was too short for a sign of
#: work.
_KERNEL_HOURS_RATIO = 0.02
#: Without profiling, kernels of a few milliseconds are invisible. A process that starts them uses at least this many
#: cores on average. A sleeping process uses less.
_STARTS_KERNELS_CORES = 0.003

#: Classes of XID errors that need an operator or a GPU reset. docs/alerts.md lists the XIDs.
_HARD_CLASSES = ("hardware", "memory", "remap_failed", "lost")

#: Minimum time in seconds for which metrics must contradict each other. Contradictions after restarts end sooner.
_CONTRADICTION_SECONDS = 3600.0

#: Minimum times in seconds for which a stalled holder computes and moves nothing. Checkpoints and evaluations end
#: sooner. The longer time is for holders that listen, because a server whose kernels wait for requests looks the same.
_STALLED_SECONDS, _STALLED_IN_DOUBT_SECONDS = 3600.0, 86400.0

#: Advice for a failed GPU.
_REPAIR = "Drain the host, and reset or replace the GPU."
#: Verdicts on use. For these, a long pause within the limit is worth a sentence.
_USED = ("saturated", "oversized_memory", "oversized_compute", "right")
#: Throttle reasons that indicate a fault. A power cap does not: operators configure it, and a GPU only reaches it under
#: load.
_HARMFUL = ("hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake")


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of verdicts. Ratios are from 0 to 1, times in hours.

    `least_history_hours`: minimum history for a verdict, with a day and a night. `idle_hours`: minimum quiet time of an
    idle holder. `rhythm_factor`: the quiet time must also be at least this multiple of the holder's longest earlier
    one. `new_holder_hours`: minimum quiet time of a holder with less than two weeks of history. `small_memory_ratio`,
    `small_compute_ratio`: maximum use of an oversized GPU. `memory_margin_ratio`: margin above the peak of memory use.
    `throttled_ratio`: minimum share of throttled time of an unhealthy GPU.
    """

    least_history_hours: float = 24.0
    least_coverage_ratio: float = 0.5
    idle_hours: float = 48.0
    rhythm_factor: float = 2.0
    new_holder_hours: float = 184.0
    small_memory_ratio: float = 0.5
    memory_margin_ratio: float = 0.15
    small_compute_ratio: float = 0.5
    full_memory_ratio: float = 0.95
    saturated_ratio: float = 0.9
    useful_tensor_ratio: float = 0.1
    useful_bandwidth_ratio: float = 0.3
    throttled_ratio: float = 0.05

    @property
    def idle_policy(self) -> Policy:
        """Return the idle rule's limits in seconds."""
        return Policy(
            grace_seconds=self.idle_hours * 3600,
            rhythm_factor=self.rhythm_factor,
            new_threshold_seconds=self.new_holder_hours * 3600,
        )


def judge(holding: Holding, limits: Thresholds = Thresholds(), *, seconds: float | None = None) -> Verdict:
    """Return the most urgent verdict on a holding.

    `seconds` is the length of the window, or None without history.
    """
    word, reason, waste = _judge(holding, limits, seconds)
    money = None
    if holding.price_per_hour is not None:
        money = round(holding.price_per_hour * HOURS_PER_MONTH * waste, 2)
    rest = resting(holding, limits.idle_policy)
    idle_after = rest.idle_after_seconds if rest else None
    if rest and word in _USED:
        reason += " It has been quiet for %s, and is idle after %s." % (
            duration(rest.seconds),
            duration(rest.idle_after_seconds),
        )
    return Verdict(word, reason, use_of(holding, limits), money, idle_after, waste)


def _judge(holding: Holding, limits: Thresholds, seconds: float | None) -> tuple[str, str, float]:
    """Return (verdict, reason, wasted share of the price)."""
    if holding.lost:
        return "unhealthy", "The driver lost the GPU, or NVML calls for it fail. %s" % _REPAIR, 1.0
    hard = sorted((code for code, kind in holding.xid.items() if kind in _HARD_CLASSES), key=lambda code: code.zfill(4))
    if hard:
        return "unhealthy", "XID %s in the window. %s" % (", ".join(hard), _REPAIR), 0.0
    slowed = {reason: share for reason, share in holding.throttled.items() if reason in _HARMFUL}
    worst = max(slowed, key=lambda reason: slowed[reason], default=None)
    if worst is not None and slowed[worst] >= limits.throttled_ratio:
        return (
            "unhealthy",
            "Throttled (%s) for %.0f %% of the time. Check cooling and power supply." % (worst, 100 * slowed[worst]),
            0.0,
        )
    if holding.silent_seconds > _SILENT_SECONDS:
        return "no_data", "No samples for %s." % duration(holding.silent_seconds), 0.0
    held = is_held(holding)
    if holding.subject.kind == "tenant":
        return _judge_tenant(holding, limits)
    contradiction = _contradiction(holding)
    if contradiction:
        return "broken_metrics", contradiction, 0.0
    stalled = _stalled(holding)
    if stalled and held is not False:
        return "stalled", "%s %s" % (held_by(holding), stalled), 1.0
    rest = resting(holding, limits.idle_policy)
    if rest and held is False:
        return "free", "No holder. No sign of work for %s." % duration(rest.seconds), 1.0
    if rest and rest.is_idle:
        return _judge_idle(holding, rest)
    waits = _polls_for_clients(holding, limits) or _hardly_works(holding)
    if waits:
        return "standby", "%s %s" % (held_by(holding), waits), 1.0
    if rest and rest.too_early:
        return "no_data", "%s %s" % (held_by(holding), rest.too_early), 0.0
    if held is False and _never_used(holding, limits):
        return "free", "No holder, and no process for %s." % duration(holding.processes.seconds), 1.0
    short = _too_little(holding, limits, seconds)
    if short:
        return "no_data", short, 0.0
    return _judge_use(holding, limits)


def _contradiction(holding: Holding) -> str:
    """Describe how the metrics contradict each other, or return ""."""
    unreported, unexplained = holding.unreported_work_seconds, holding.unexplained_busy_seconds
    if unreported >= _CONTRADICTION_SECONDS:
        reason = "Its metrics contradicted each other for %s: no kernel ran, but SMs, tensor cores or power show work."
        return reason % duration(unreported)
    if unexplained >= _CONTRADICTION_SECONDS:
        reason = "Its metrics contradicted each other for %s: utilization is stuck at 99 %% or more, but nothing else shows work."
        return reason % duration(unexplained)
    return ""


def _stalled(holding: Holding) -> str:
    """Describe why the workload seems to hang, or return ""."""
    newest = math.inf if holding.newest_holder_seconds is None else holding.newest_holder_seconds
    ago = holding.computed_seconds_ago
    # If the holder never used tensor cores, its kernel may wait by design.
    if ago is None or ago > newest:
        return ""
    listens = any(holder.listens or holder.clients for holder in holding.holders or ())
    if holding.stalled_seconds < (_STALLED_IN_DOUBT_SECONDS if listens else _STALLED_SECONDS):
        return ""
    return (
        "A kernel has run all the time for %s, but tensor cores, memory, NVLink and PCIe were at rest, as in a hung all-reduce. "
        "Ask its owner." % duration(holding.stalled_seconds)
    )


def _never_used(holding: Holding, limits: Thresholds) -> bool:
    """Return whether no process ran on the subject in the whole window.

    Replaces the idle rule for subjects without activity metrics, such as MIG instances before Hopper.
    """
    processes = holding.processes
    if processes is None or holding.busy is not None or holding.compute is not None:
        return False
    long_enough = processes.seconds >= max(limits.idle_hours, limits.least_history_hours) * 3600
    return processes.max == 0 and long_enough and processes.coverage_ratio >= limits.least_coverage_ratio


def _judge_idle(holding: Holding, rest: Resting) -> tuple[str, str, float]:
    """Return the verdict held_without_process, standby or idle, with the reason."""
    if runs_processes(holding) is False and is_held(holding) and holding.held_seconds is not None:
        return "held_without_process", "%s No process runs on it. %s" % (held_by(holding), rest.why), 1.0
    waits = _works_elsewhere(holding) or _waits_for_clients(holding)
    if waits:
        return "standby", "%s %s %s" % (held_by(holding), waits, rest.why), 1.0
    doubt = _cannot_tell(holding)
    if doubt:
        return "no_data", "%s Cannot tell whether it works: %s %s" % (held_by(holding), doubt, rest.why), 0.0
    return "idle", "%s %s" % (held_by(holding), rest.why), 1.0


def held_by(holding: Holding) -> str:
    """Return the holders as the first sentence of a reason."""
    who = "; ".join(dict.fromkeys(map(str, holding.holders or ())))
    if not who and not is_held(holding):
        return "Its holder is unknown."
    return "Held%s%s." % (
        " by %s" % who if who else "",
        ", start unknown" if holding.held_seconds is None and not _has_start(holding) else "",
    )


def _has_start(holding: Holding) -> bool:
    return any(holder.since_seconds is not None for holder in holding.holders or ())


def _works_elsewhere(holding: Holding) -> str:
    """Name the other GPUs on which the processes work, or return ""."""
    return "Its process works on %s." % ", ".join(holding.works_on) if holding.works_on else ""


def _waits_for_clients(holding: Holding) -> str:
    """Describe how the holders wait for clients, or return "".

    The host reports listening sockets and connected clients. Notebook kernels also listen, but only for their own
    notebook server. Their command lines identify them. A server that is made to look like a notebook gains nothing,
    because its verdict gets worse.
    """
    holders = holding.holders or ()
    clients = sum(holder.clients or 0 for holder in holders)
    if clients:
        return "Clients are connected: %d." % clients
    return "It waits for clients." if _is_server(holding) else ""


def _is_server(holding: Holding) -> bool:
    return any(holder.listens and not is_notebook_holder(holder) for holder in holding.holders or ())


def _cannot_tell(holding: Holding) -> str:
    """Return why the holder may work without a sign of work, or ""."""
    quiet = holding.quiet
    if quiet is None or runs_processes(holding) is False:
        return ""
    if quiet.kernel_hours_ratio > _KERNEL_HOURS_RATIO:
        return "kernels ran in %.0f %% of the hours of a week, each too briefly for a sign of work." % (
            100 * quiet.kernel_hours_ratio
        )
    groups = {signal.group for signal in SIGNALS if signal.name in quiet.signals}
    if quiet.cpu_cores is None or quiet.cpu_cores < _STARTS_KERNELS_CORES:
        return ""
    if "profiling" not in groups:
        return "its processes use CPU time, and without profiling kernels of a few milliseconds are not seen."
    if "video engines" not in groups:
        return "its processes use CPU time, and the engines for video, JPEG and optical flow are not measured."
    return ""


def _hardly_works(holding: Holding) -> str:
    """Describe how only probes, restarts or diagnostics use a GPU, or return "".

    A cron job has the same utilization. So the holder must listen, or its restarts and CPU time must explain the
    kernels.
    """
    explained = holding.explained_kernels
    if not holding.hardly_works or (holding.held_seconds or 0.0) < HARDLY_SECONDS:
        return ""
    if not explained and not _is_server(holding):
        return ""
    text = "%sFor 97 %% of the last %s, kernels ran for 1 %% of the time or less%s %s" % (
        "It waits for clients. " if _is_server(holding) else "",
        duration(HARDLY_SECONDS),
        "." if explained else ", as with health probes, restarts, diagnostics or rare requests.",
        explained,
    )
    return text.rstrip()


def _is_loaded(holding: Holding) -> bool:
    memory, total = holding.memory, holding.memory_total_bytes
    return bool(memory and memory.max and total and memory.max >= _LOADED_RATIO * total)


def _polls_for_clients(holding: Holding, limits: Thresholds) -> str:
    """Describe how a model server polls for requests, or return "".

    Such a server uses CPU time while the GPU is idle. So does a workload that prepares data. Therefore the holder must
    also wait for clients.
    """
    if holding.device_quiet is None or not is_held(holding) or not _is_loaded(holding):
        return ""
    rest = resting(replace(holding, quiet=holding.device_quiet), limits.idle_policy)
    waits = _waits_for_clients(replace(holding, quiet=holding.device_quiet))
    if rest is None or not rest.is_idle or not waits:
        return ""
    return "%s Its processes use CPU time, but the GPU is idle. %s" % (waits, rest.why)


def _judge_use(holding: Holding, limits: Thresholds) -> tuple[str, str, float]:
    memory, compute = holding.memory, holding.compute or holding.busy
    total = holding.memory_total_bytes
    peak = memory.max if memory else None
    full = peak / total if peak is not None and total else None
    active = compute.p95 if compute else None
    if full is not None and full >= limits.full_memory_ratio:
        return "saturated", "Memory use peaked at %.0f %%." % (100 * full), 0.0
    if active is not None and active >= limits.saturated_ratio:
        return "saturated", "Compute is at %.0f %% or more for 5 %% of the time." % (100 * active), 0.0
    if compute is None:
        return "no_data", "Its activity is unknown, and memory alone does not show its need.", 0.0
    top = compute.p99
    if full is not None and full * (1 + limits.memory_margin_ratio) <= limits.small_memory_ratio:
        # A GPU with a high compute load is not oversized, even with little memory in use.
        if top is not None and top <= limits.small_compute_ratio:
            reason = (
                "At most %.0f %% of the memory was used, and at most %.0f %% of the compute for 99 %% of the time."
                % (100 * full, 100 * top)
            )
            return "oversized_memory", reason, 1 - max(full * (1 + limits.memory_margin_ratio), top)
    elif top is not None and top <= limits.small_compute_ratio:
        return (
            "oversized_compute",
            "At most %.0f %% of the compute was used for 99 %% of the time, with up to %s of the memory."
            % (100 * top, "%.0f %%" % (100 * full) if full is not None else "an unknown share"),
            0.0 if full is None else max(0.0, 1 - max(full * (1 + limits.memory_margin_ratio), top)),
        )
    return "right", "Memory and compute are in use.", 0.0


def _judge_tenant(holding: Holding, limits: Thresholds) -> tuple[str, str, float]:
    memory, total = holding.memory, holding.memory_total_bytes
    if holding.denials:
        return "saturated", "The quota refused %s." % counted(round(holding.denials), "memory request"), 0.0
    if memory is None or memory.max is None or not total:
        return "no_data", "The use of its quota is unknown.", 0.0
    if memory.seconds < limits.least_history_hours * 3600:
        return "no_data", "Only %s of history." % duration(memory.seconds), 0.0
    full = memory.max / total
    if full >= limits.full_memory_ratio:
        return "saturated", "Memory use peaked at %.0f %% of the quota." % (100 * full), 0.0
    # Tenants' earlier quiet times are unknown, because only their memory use is measured.
    after = threshold_seconds(limits.idle_policy, longest_seconds=0.0, history_seconds=0.0)
    if memory.max == 0 and memory.seconds < after:
        early = "The quota was not used for %s. Too early for a verdict: idle after %s."
        return "no_data", early % (duration(memory.seconds), duration(after)), 0.0
    if memory.max == 0:
        return "idle", "The quota was not used for %s." % duration(memory.seconds), 0.0
    if full * (1 + limits.memory_margin_ratio) <= limits.small_memory_ratio:
        return "oversized_memory", "At most %.0f %% of the quota was used." % (100 * full), 0.0
    return "right", "The quota is in use.", 0.0


def _too_little(holding: Holding, limits: Thresholds, seconds: float | None) -> str:
    """Return why there is not enough data to judge the use, or ""."""
    known = [stat for stat in (holding.memory, holding.compute or holding.busy) if stat is not None]
    if not known:
        return "Neither its activity nor its memory was measured."
    least = min(stat.seconds for stat in known)
    if least < limits.least_history_hours * 3600:
        return "Only %s of history. A verdict needs %g h." % (duration(least), limits.least_history_hours)
    if seconds is not None and _gaps(known, limits):
        return "Samples are missing for %.0f %% of the window." % (100 * (1 - min(s.coverage_ratio for s in known)))
    if holding.memory is None and holding.compute is None and holding.busy is None:
        return "Neither its activity nor its memory was measured."
    return ""


def _gaps(known: list[Stat], limits: Thresholds) -> bool:
    return min(stat.coverage_ratio for stat in known) < limits.least_coverage_ratio


def use_of(holding: Holding, limits: Thresholds = Thresholds()) -> str:
    """Return how the compute is used: "none", "useful", "busy" or "unknown".

    The use is "useful" if the tensor cores or the memory bandwidth reach their thresholds, and "busy" otherwise.
    """
    if holding.busy is not None and holding.busy.max is not None and holding.busy.max < QUIET_BUSY_RATIO:
        return "none"
    tensor = holding.tensor.p95 if holding.tensor else None
    bandwidth = holding.bandwidth.p95 if holding.bandwidth else None
    if tensor is None and bandwidth is None:
        return "unknown"
    useful = (tensor or 0.0) >= limits.useful_tensor_ratio or (bandwidth or 0.0) >= limits.useful_bandwidth_ratio
    return "useful" if useful else "busy"
