# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change one unused GPU, verify the effect, and restore its original state.

`change` in module_utils plans and applies the changes, as for the collection's modules. Before the first change, the
run saves the original state to disk. It restores this state, whatever ends the run. After kill -9, the next run
restores the state first.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Sequence

from found import Original, Record

from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal
from ansible_collections.openfleet.gpu.plugins.module_utils.change.prepare import observe
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import (
    ApplyError,
    BusyError,
    FleetError,
    NvmlError,
    PlanError,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.hardware.model_readings import Readings
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Gpu, Host
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target, instance_text
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.transaction import locked
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.observers import OBSERVERS
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing.model import SETTING
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing.plan import current
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.compute_mode import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.compute_mode import SETTING as MODE_SETTING
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.bounded_session import BoundedSession
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.calls import (
    IN_USE,
    NO_PERMISSION,
    NOT_SUPPORTED,
)
from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware.outcome import (
    DIFFERS,
    PASSED,
    Check,
    compared,
    not_run,
)

MIG, COMPUTE_MODE, TIME_SLICE, RESTORED = (
    "change: MIG", "change: compute mode", "change: time slice", "change: restored",
)  # fmt: skip
#: Areas, in the order in which the run changes them.
AREAS = (MIG, COMPUTE_MODE, TIME_SLICE)
WHERE = "check-gpu --change"
#: Codes with which the driver refuses a change. They do not mean that the GPU is faulty.
_REFUSALS = (IN_USE, NO_PERMISSION, NOT_SUPPORTED)
#: Settings that a GPU reset loses: (name, call for the current value, call for the default, kind).
_LOST_BY_RESET = (
    ("power limit", "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit", ""),
    ("application clock", "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock", "graphics"),
    ("application clock of the memory", "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock", "memory"),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """The GPU to change, and the folder of the record.

    If the GPU is None, the run uses the first possible GPU. `calls` has each GPU's readings by index. `look` is a
    function that returns the checks of a GPU with instances.
    """

    gpu: int | None
    directory: str
    calls: Mapping[int, Sequence[Mapping[str, Any]]]
    look: Callable[[int], list[Check]]
    tell: Callable[[str], None]


def checks(request: Request) -> list[Check]:
    """Make all changes, and return their checks.

    If an exception ends the run, this function restores the GPU before it raises the exception again.
    """
    if os.geteuid() != 0:
        return list(none(request.gpu, "needs root"))
    try:
        with locked(request.directory, 0.0), BoundedSession() as session:
            session.observers = OBSERVERS
            return _Change(request, session).run()
    except FleetError as error:
        return list(none(request.gpu, str(error)))


def none(gpu: int | None, reason: str, areas: Sequence[str] = AREAS) -> Iterator[Check]:
    """Yield a check with the outcome "not run" for each area."""
    for area in areas:
        yield not_run(area, gpu, "all", reason)


class _Change:
    def __init__(self, request: Request, session: BoundedSession) -> None:
        self._request, self._session = request, session
        self._record = Record(request.directory)

    def run(self) -> list[Check]:
        if Journal(self._request.directory).path.exists():
            raise FleetError(
                "this host",
                "a change of its layout was interrupted and is not completed",
                "Apply gpu_layout again first (site.yml, or gpu-layout apply).",
            )
        original = self._record.read()
        if original is not None:
            self._tell("a run with --change was interrupted: restoring the GPU first")
            restored = self._restored(original, "state before an interrupted run")
            return [restored, *(self._changed() if restored.outcome == PASSED else none(restored.gpu, "see above"))]
        return self._changed()

    def _changed(self) -> list[Check]:
        gpu, reason = self._choose()
        if gpu is None:
            return list(none(self._request.gpu, reason))
        target = planner.target_of(gpu)
        wanted, why_not = self._instances(gpu)
        made = (
            ()
            if wanted is None
            else tuple((instance.profile, instance.start) for instance in wanted.division.instances)
        )
        original = Original(target, made)
        try:
            self._record.begin(target, made)
            result = self._all(gpu, original, wanted, why_not)
            return [*result, self._restored(original, "original state")]
        except BaseException:
            # Restore again if a signal interrupted the first attempt. Only the first signal raises an exception.
            self._restored(original, "original state")
            raise

    def _all(self, gpu: Gpu, original: Original, wanted: Target | None, why_not: str) -> list[Check]:
        """Make the changes in order and return their checks. An error becomes a check.

        After an error, the run makes no further changes.
        """
        result: list[Check] = []
        try:
            result += self._mig(gpu, original, wanted) if wanted else [not_run(MIG, gpu.index, "all", why_not)]
            result += self._compute_mode(gpu, original)
            result += self._time_slice(gpu, original)
        except FleetError as error:
            result.append(Check(RESTORED, gpu.index, "all changes", DIFFERS, "made", str(error)))
        return result

    # --- choice of the GPU and its instances ---------------------------------------------------------------------------

    def _choose(self) -> tuple[Gpu | None, str]:
        """Return a GPU that may be changed and "". Otherwise None and the reasons."""
        reasons = []
        host = self._observe()
        for gpu in host.gpus:
            if self._request.gpu in (None, gpu.index):
                reason = _refusal(gpu)
                if not reason:
                    return gpu, ""
                reasons.append("GPU %d %s" % (gpu.index, reason))
        reasons += [str(gpu) for gpu in host.lost if self._request.gpu in (None, gpu.index)]
        return None, "; ".join(reasons) or "the host has no GPU %s" % self._request.gpu

    def _instances(self, gpu: Gpu) -> tuple[Target | None, str]:
        """Return a target full of the smallest instances and "". Otherwise None and why."""
        if not gpu.mig.capable:
            return None, "this GPU has no MIG"
        lost = "" if gpu.mig.enabled or gpu.architecture != "ampere" else self._lost_by_reset(gpu)
        if lost:
            return None, "MIG mode needs a reset of this GPU, which may end settings: %s" % lost
        # Ignore profiles that differ only in their engines, such as 1g.10gb+me.
        plain = [profile for profile in gpu.mig.profiles if "+" not in profile.name and "-" not in profile.name]
        name, most = "", 0
        if plain:
            smallest = min(plain, key=lambda profile: (profile.compute_slices, profile.memory_mib))
            name, most = smallest.name, smallest.max_instances
        reason = ""
        for count in range(most, -1, -1):
            target = Target(gpu.uuid, WHERE, "mig", MigDivision((WantedInstance(name),) * count))
            try:
                plan = planner.plan_gpu(gpu, target)
            except PlanError as error:
                reason = str(error)
                continue
            if count:
                return Target(gpu.uuid, WHERE, "mig", MigDivision(plan.planned())), ""
        return None, reason or "this GPU offers no profile"

    def _lost_by_reset(self, gpu: Gpu) -> str:
        readings = Readings(self._request.calls.get(gpu.index, ()))
        settings = []
        for words, call, default_call, kind in _LOST_BY_RESET:
            now, default = readings.value(call, kind), readings.value(default_call, kind)
            if None not in (now, default) and now != default:
                settings.append("its %s is %s instead of the default %s" % (words, now, default))
        return ", ".join(settings)

    # --- changes -------------------------------------------------------------------------------------------------------

    def _mig(self, gpu: Gpu, original: Original, wanted: Target) -> list[Check]:
        wanted_instances = wanted.division.instances
        what = "%d instances of %s" % (len(wanted_instances), wanted_instances[0].profile)
        self._tell("GPU %d: MIG mode and %s" % (gpu.index, what))
        result: list[Check] = []

        def made(now: Gpu) -> list[Check]:
            expected = ["%s@%d" % (instance.profile, instance.start) for instance in wanted_instances]
            return [
                compared(MIG, gpu.index, "MIG mode enabled and pending", [True, True], [now.mig.enabled, now.mig.pending]),
                compared(MIG, gpu.index, what, expected, list(map(instance_text, now.mig.instances))),
                compared(MIG, gpu.index, "MIG devices with different UUIDs", len(expected), len(_mig_uuids(now))),
            ]  # fmt: skip

        result += self._applied(MIG, "make %s" % what, gpu, original, wanted, made)
        if result[-1].outcome == PASSED:
            result += self._request.look(gpu.index)
        if result[0].outcome == PASSED:
            # The time slice may be unreadable in MIG mode, so the run restores it later.
            before = _without_time_slice(original.target)
            result += self._applied(MIG, "remove them", gpu, original, before, lambda now: [
                compared(MIG, gpu.index, "MIG mode afterwards", original.target.division is not None, now.mig.enabled),
                compared(MIG, gpu.index, "instances afterwards", [], list(map(instance_text, now.mig.instances))),
            ])  # fmt: skip
        return result

    def _compute_mode(self, gpu: Gpu, original: Original) -> list[Check]:
        before = original.target.settings.get(MODE_SETTING)
        if before is None:
            reason = "in MIG mode each instance has its own" if gpu.mig.enabled else "it is unknown"
            return [not_run(COMPUTE_MODE, gpu.index, "all", reason)]
        other = EXCLUSIVE_PROCESS if before == DEFAULT else DEFAULT
        self._tell("GPU %d: compute mode %s" % (gpu.index, other))
        return self._set_and_restore(COMPUTE_MODE, gpu, original, _with(gpu, MODE_SETTING, other),
                                     lambda now: now.compute_mode)  # fmt: skip

    def _time_slice(self, gpu: Gpu, original: Original) -> list[Check]:
        before = current(gpu)
        if gpu.mig.enabled:
            return [not_run(TIME_SLICE, gpu.index, "all", "this GPU is in MIG mode")]
        if before is None:
            seen = gpu.settings.get(SETTING)
            reason = (seen.problem if seen else None) or "its current time slice cannot be set"
            return [not_run(TIME_SLICE, gpu.index, "all", reason)]
        other = "short" if before != "short" else "long"
        self._tell("GPU %d: time slice %s" % (gpu.index, other))
        return self._set_and_restore(TIME_SLICE, gpu, original, _with(gpu, SETTING, other), current)

    def _set_and_restore(
        self, area: str, gpu: Gpu, original: Original, other: Target, read: Callable[[Gpu], str | None]
    ) -> list[Check]:
        """Set another value and the original value. Return checks that each was applied."""

        def seen(target: Target) -> Callable[[Gpu], list[Check]]:
            wanted = target.settings.get(SETTING if area == TIME_SLICE else MODE_SETTING)
            return lambda now: [compared(area, gpu.index, "read back: %s" % wanted, wanted, read(now))]

        result = self._applied(area, "set another value", gpu, original, other, seen(other))
        if result[0].outcome == PASSED:
            result += self._applied(
                area, "set the original value", gpu, original, original.target, seen(original.target)
            )
        return result

    def _applied(
        self, area: str, what: str, gpu: Gpu, original: Original, target: Target, seen: Callable[[Gpu], list[Check]]
    ) -> list[Check]:
        """Apply a target as for gpu_layout, and return the checks.

        This function makes the first check, and `seen` makes the others.
        """
        host = self._observe()
        now = _of(host, target.gpu_uuid)
        original.refuse_foreign(now)
        plan = planner.plan([now], [target])
        words = "; ".join(plan.lines())
        try:
            after = apply_plan.apply(self._context(), plan)
        except BusyError as error:
            return [not_run(area, gpu.index, what, str(error))]
        except ApplyError as error:
            if error.outcome != "old":
                raise
            cause = error.__cause__
            if error.reboot_needed or (isinstance(cause, NvmlError) and cause.code in _REFUSALS):
                return [not_run(area, gpu.index, what, str(error))]
            return [Check(area, gpu.index, what, DIFFERS, words, str(error))]
        return [Check(area, gpu.index, what, PASSED, words, "done"), *seen(_of(after, target.gpu_uuid))]

    def _context(self) -> apply_plan.Context:
        return apply_plan.Context(self._session, self._record.journal, look=self._observe)

    # --- restoring -----------------------------------------------------------------------------------------------------

    def _restored(self, original: Original, what: str) -> Check:
        """Restore the GPU.

        If this fails, keep the record and return a check with the error.
        """
        try:
            return self._restore(original, what)
        except FleetError as error:
            self._tell("%s is not restored: %s" % (original.target.gpu_uuid, error))
            self._tell("its original state is in %s: run check-gpu --change again" % self._record.path)
            return Check(RESTORED, None, what, DIFFERS, "restored", str(error), "run check-gpu --change again")

    def _restore(self, original: Original, what: str) -> Check:
        now = _of(self._observe(), original.target.gpu_uuid)
        original.refuse_foreign(now)
        # Restore the MIG mode first, because the time slice may be unreadable in MIG mode.
        for target in (_without_time_slice(original.target), original.target):
            host = apply_plan.go_back(self._context(), [target], apply_plan.is_known)
        self._record.end()
        seen = planner.plan_gpu(_of(host, original.target.gpu_uuid), original.target).before()
        return Check(RESTORED, now.index, what, PASSED, "restored", seen)

    def _observe(self, gpu: str | None = None) -> Host:
        """Read the state of the host, or of one of its GPUs, with all holders.

        Services count as holders, and this function stops none.
        """
        return observe(self._session, only=gpu)

    def _tell(self, text: str) -> None:
        self._request.tell(text)


def _of(host: Host, uuid: str) -> Gpu:
    for gpu in host.gpus:
        if gpu.uuid == uuid:
            return gpu
    raise FleetError("gpu %s" % uuid, "it does not answer", "Check the kernel log, then run check-gpu --change again.")


def _refusal(gpu: Gpu) -> str:
    """Return why the GPU must not be changed. Empty if it may be changed."""
    # Monitoring blocks only changes of the MIG mode. The plan of such a change lists the monitoring processes.
    users = [str(holder) for holder in gpu.held_by if not holder.watches]
    if users:
        return "is in use: %s" % "; ".join(users)
    if gpu.mig.instances:
        return "has instances already: %s" % ", ".join(map(instance_text, gpu.mig.instances))
    if gpu.mig.enabled != gpu.mig.pending:
        return "has a change of its MIG mode pending"
    return ""


def _mig_uuids(gpu: Gpu) -> set[str]:
    return {c.mig_uuid for i in gpu.mig.instances for c in i.compute_instances if c.mig_uuid}


def _with(gpu: Gpu, setting: str, value: str) -> Target:
    return Target(gpu.uuid, WHERE, "as before", None, {setting: value})


def _without_time_slice(target: Target) -> Target:
    return dataclasses.replace(
        target, settings={name: value for name, value in target.settings.items() if name != SETTING}
    )
