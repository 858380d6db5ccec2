# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a holding to one word with its reason. Pure.

What is not known is never taken for nothing: a word that blames a holder needs samples for all of the time it speaks of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..idle.rule import Policy, threshold_seconds
from .holdings import is_held, runs_processes
from .model import Holding, Stat, Verdict
from .resting import Resting, duration, resting
from .series import QUIET_BUSY_RATIO

#: A subject of which there was no sample for so long is not there, or not scraped: what it does now is not known. The
#: last sample is found to half an hour within a day, and to six hours before.
_SILENT_SECONDS = 3 * 3600.0

_HOURS_PER_MONTH = 730.5

#: From this share of its memory on a GPU has a model loaded: a context alone takes less.
_LOADED_RATIO = 0.1
#: A service on which kernels ran in more than this share of the hours answers clients, in times too short for a sign of work.
_MOST_HOURS_RATIO = 0.5
#: Programs that listen for the notebook server that has started them.
_NOTEBOOKS = ("ipykernel", "jupyter")

#: Classes of XIDs after which a board needs a person or a reset; docs/alerts.md has the numbers of each.
_HARD_CLASSES = ("hardware", "memory", "remap_failed", "lost")

#: Metrics that contradict each other for this long in the window are broken: less may be a restart's.
_CONTRADICTION_SECONDS = 3600.0

#: What slows a GPU against its will; a power cap is what the operator set, and says that the GPU is worked.
_HARMFUL = ("hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake")


@dataclass(frozen=True)
class Thresholds:
    """Where the words begin. Ratios from 0 to 1, times in hours.

    `least_history_hours` below this a subject has no verdict but no_data, since a day and a night have to be in it.
    `idle_hours` nothing that is quiet for less is idle; `rhythm_factor` nor what is quiet for less than so many times the longest
    quiet time of its holder that ended; `new_holder_hours` nor a holder with less than two weeks of history before that.
    `small_memory_ratio`, `small_compute_ratio` the maximum seen stays below: less would have done.
    `memory_margin_ratio` is added to the maximum seen before that is said.
    `throttled_ratio` of the time spent slowed against its will makes a GPU unhealthy.
    """

    least_history_hours: float = 24.0
    least_coverage_ratio: float = 0.5
    idle_hours: float = 48.0
    rhythm_factor: float = 2.0
    new_holder_hours: float = 176.0
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
        return Policy(
            grace_seconds=self.idle_hours * 3600,
            rhythm_factor=self.rhythm_factor,
            new_threshold_seconds=self.new_holder_hours * 3600,
        )


def judge(holding: Holding, limits: Thresholds = Thresholds(), *, seconds: float | None = None) -> Verdict:
    """The one word that is most urgent. `seconds` is the window's length; None without history."""
    word, reason, waste = _judge(holding, limits, seconds)
    money = None
    if holding.price_per_hour is not None:
        money = round(holding.price_per_hour * _HOURS_PER_MONTH * waste, 2)
    rest = resting(holding, limits.idle_policy)
    return Verdict(word, reason, use_of(holding, limits), money, rest.idle_after_seconds if rest else None)


def _judge(holding: Holding, limits: Thresholds, seconds: float | None) -> tuple[str, str, float]:
    """(word, reason, the share of the price that is wasted)."""
    if holding.lost:
        return "unhealthy", "The driver has lost the GPU, or calls for it fail.", 1.0
    hard = sorted((code for code, kind in holding.xid.items() if kind in _HARD_CLASSES), key=lambda code: code.zfill(4))
    if hard:
        return "unhealthy", "XID %s in the window." % ", ".join(hard), 0.0
    slowed = {reason: share for reason, share in holding.throttled.items() if reason in _HARMFUL}
    worst = max(slowed, key=lambda reason: slowed[reason], default=None)
    if worst is not None and slowed[worst] >= limits.throttled_ratio:
        return "unhealthy", "Slowed down (%s) for %.0f %% of the time." % (worst, 100 * slowed[worst]), 0.0
    if holding.silent_seconds > _SILENT_SECONDS:
        return "no_data", "Nothing was heard of it for %s." % duration(holding.silent_seconds), 0.0
    held = is_held(holding)
    if holding.subject.kind == "tenant":
        return _judge_tenant(holding, limits)
    contradiction = _contradiction(holding)
    if contradiction:
        return "broken_metrics", contradiction, 0.0
    rest = resting(holding, limits.idle_policy)
    if rest and held is False:
        return "free", "It has no holder. No sign of work for %s." % duration(rest.seconds), 1.0
    if rest and rest.is_idle:
        return _judge_idle(holding, rest)
    polls = _polls_for_clients(holding, limits)
    if polls:
        return "standby", "%s %s" % (_held_by(holding), polls), 1.0
    if rest and rest.too_early:
        return "no_data", "%s %s" % (_held_by(holding), rest.too_early), 0.0
    if held is False and _never_used(holding, limits):
        return "free", "It has no holder, and no process was on it for %s." % duration(holding.processes.seconds), 1.0
    short = _too_little(holding, limits, seconds)
    if short:
        return "no_data", short, 0.0
    return _judge_use(holding, limits)


def _contradiction(holding: Holding) -> str:
    """Say how its metrics contradict each other; empty where they do not, or not for long."""
    unreported, unexplained = holding.unreported_work_seconds, holding.unexplained_busy_seconds
    if unreported >= _CONTRADICTION_SECONDS:
        reason = "For %s its metrics contradict each other: no kernel ran, yet SMs, tensor cores or power show work."
        return reason % duration(unreported)
    if unexplained >= _CONTRADICTION_SECONDS:
        reason = "For %s its metrics contradict each other: utilisation is stuck at 99 %% or more, yet nothing else shows work."
        return reason % duration(unexplained)
    return ""


def _never_used(holding: Holding, limits: Thresholds) -> bool:
    """Whether it is known without any figure of its activity, as of instances before Hopper, that no process was on it."""
    processes = holding.processes
    if processes is None or holding.busy is not None or holding.compute is not None:
        return False
    long_enough = processes.seconds >= max(limits.idle_hours, limits.least_history_hours) * 3600
    return processes.max == 0 and long_enough and processes.coverage_ratio >= limits.least_coverage_ratio


def _judge_idle(holding: Holding, rest: Resting) -> tuple[str, str, float]:
    """Say what kind of idle it is."""
    if runs_processes(holding) is False and is_held(holding) and holding.held_seconds is not None:
        return "held_without_process", "%s No process runs on it. %s" % (_held_by(holding), rest.why), 1.0
    waits = _works_elsewhere(holding) or _waits_for_clients(holding)
    if waits:
        return "standby", "%s %s %s" % (_held_by(holding), waits, rest.why), 1.0
    return "idle", "%s %s" % (_held_by(holding), rest.why), 1.0


def _held_by(holding: Holding) -> str:
    who = "; ".join(dict.fromkeys(map(str, holding.holders or ())))
    if not who and not is_held(holding):
        return "Its holder is not known."
    return "Held%s%s." % (
        " by %s" % who if who else "",
        ", since when is not known" if holding.held_seconds is None else "",
    )


def _works_elsewhere(holding: Holding) -> str:
    """What a process that takes its GPUs in turns does just now; empty where there is none."""
    return "Its process works on %s." % ", ".join(holding.works_on) if holding.works_on else ""


def _waits_for_clients(holding: Holding) -> str:
    """How a loaded model server shows, as the host sees it; empty where it is none.

    A notebook's kernel listens too, for the server that it belongs to. Its command line says so: posing as a notebook
    gains nothing.
    """
    holders = holding.holders or ()
    clients = sum(holder.clients or 0 for holder in holders)
    if clients:
        return "Clients are connected: %d." % clients
    if not any(holder.listens and not any(word in holder.who for word in _NOTEBOOKS) for holder in holders):
        return ""
    if holding.quiet and holding.quiet.kernel_hours_ratio > _MOST_HOURS_RATIO:
        return "It waits for clients, and kernels ran in most hours, too briefly to be a sign of work."
    return "It waits for clients with its memory filled." if _is_loaded(holding) else ""


def _is_loaded(holding: Holding) -> bool:
    memory, total = holding.memory, holding.memory_total_bytes
    return bool(memory and memory.max and total and memory.max >= _LOADED_RATIO * total)


def _polls_for_clients(holding: Holding, limits: Thresholds) -> str:
    """How a loaded server shows whose processors ask for requests all the time; empty where it is none.

    CPU time alone may be work that prepares data, so that this takes a holder who listens.
    """
    if holding.device_quiet is None or not is_held(holding) or not _is_loaded(holding):
        return ""
    rest = resting(replace(holding, quiet=holding.device_quiet), limits.idle_policy)
    waits = _waits_for_clients(replace(holding, quiet=holding.device_quiet))
    if rest is None or not rest.is_idle or not waits:
        return ""
    return "%s Its processes take CPU time, and the GPU rests. %s" % (waits, rest.why)


def _judge_use(holding: Holding, limits: Thresholds) -> tuple[str, str, float]:
    memory, compute = holding.memory, holding.compute or holding.busy
    total = holding.memory_total_bytes
    peak = memory.max if memory else None
    full = peak / total if peak is not None and total else None
    active = compute.p95 if compute else None
    if full is not None and full >= limits.full_memory_ratio:
        return "saturated", "Memory came to %.0f %% of what there is." % (100 * full), 0.0
    if active is not None and active >= limits.saturated_ratio:
        return "saturated", "Compute is at %.0f %% or above for a twentieth of the time." % (100 * active), 0.0
    if compute is None:
        return "no_data", "Its activity is not known: memory alone does not tell what it needs.", 0.0
    top = compute.p99
    if full is not None and full * (1 + limits.memory_margin_ratio) <= limits.small_memory_ratio:
        # A GPU whose compute is needed whole is not oversized for having much memory.
        if top is not None and top <= limits.small_compute_ratio:
            reason = (
                "At most %.0f %% of the memory was used, and at most %.0f %% of the compute for 99 %% of the time."
                % (100 * full, 100 * top)
            )
            return "oversized_memory", reason, 1 - max(full * (1 + limits.memory_margin_ratio), top)
    elif top is not None and top <= limits.small_compute_ratio:
        return (
            "oversized_compute",
            "At most %.0f %% of the compute was in use for 99 %% of the time, with up to %s of the memory."
            % (100 * top, "%.0f %%" % (100 * full) if full is not None else "an unknown share"),
            0.0 if full is None else max(0.0, 1 - max(full * (1 + limits.memory_margin_ratio), top)),
        )
    return "right", "Memory and compute are in use.", 0.0


def _judge_tenant(holding: Holding, limits: Thresholds) -> tuple[str, str, float]:
    memory, total = holding.memory, holding.memory_total_bytes
    if holding.denials:
        return "saturated", "%.0f requests for memory were refused for the quota." % holding.denials, 0.0
    if memory is None or memory.max is None or not total:
        return "no_data", "What it uses of its quota is not known.", 0.0
    if memory.seconds < limits.least_history_hours * 3600:
        return "no_data", "Only %s of history." % duration(memory.seconds), 0.0
    full = memory.max / total
    if full >= limits.full_memory_ratio:
        return "saturated", "Memory came to %.0f %% of the quota." % (100 * full), 0.0
    # Nothing but memory is measured of a tenant: its rhythm is not known.
    after = threshold_seconds(limits.idle_policy, longest_seconds=0.0, history_seconds=0.0)
    if memory.max == 0 and memory.seconds < after:
        early = "None of the quota was used for %s: too early to say, idle from %s on."
        return "no_data", early % (duration(memory.seconds), duration(after)), 0.0
    if memory.max == 0:
        return "idle", "None of the quota was used for %s." % duration(memory.seconds), 0.0
    if full * (1 + limits.memory_margin_ratio) <= limits.small_memory_ratio:
        return "oversized_memory", "At most %.0f %% of the quota was used." % (100 * full), 0.0
    return "right", "The quota is in use.", 0.0


def _too_little(holding: Holding, limits: Thresholds, seconds: float | None) -> str:
    """Why nothing can be said of its use; empty where something can."""
    known = [stat for stat in (holding.memory, holding.compute or holding.busy) if stat is not None]
    if not known:
        return "There is no history of it."
    least = min(stat.seconds for stat in known)
    if least < limits.least_history_hours * 3600:
        return "Only %s of history: a verdict wants %g h." % (duration(least), limits.least_history_hours)
    if seconds is not None and _gaps(known, limits):
        return "Samples are missing for %.0f %% of the window." % (100 * (1 - min(s.coverage_ratio for s in known)))
    if holding.memory is None and holding.compute is None and holding.busy is None:
        return "There is no history of it."
    return ""


def _gaps(known: list[Stat], limits: Thresholds) -> bool:
    return min(stat.coverage_ratio for stat in known) < limits.least_coverage_ratio


def use_of(holding: Holding, limits: Thresholds = Thresholds()) -> str:
    """none, useful, busy or unknown. Kernels that run (busy) may yet do little: tensor cores and memory bandwidth tell."""
    if holding.busy is not None and holding.busy.max is not None and holding.busy.max < QUIET_BUSY_RATIO:
        return "none"
    tensor = holding.tensor.p95 if holding.tensor else None
    bandwidth = holding.bandwidth.p95 if holding.bandwidth else None
    if tensor is None and bandwidth is None:
        return "unknown"
    useful = (tensor or 0.0) >= limits.useful_tensor_ratio or (bandwidth or 0.0) >= limits.useful_bandwidth_ratio
    return "useful" if useful else "busy"
