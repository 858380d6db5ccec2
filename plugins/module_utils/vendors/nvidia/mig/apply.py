# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the MIG steps of one GPU, or leave its MIG mode pending.

A pending mode takes effect when the host reboots.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, Sequence

from ....errors import ApplyError, FleetError, NvmlError, ResetRefusedError, UnansweredCallError
from ....holders.find import blocking, find_holders
from ....holders.kernel import holders_in_kernel, listing, survives_reboot, without_reboot
from ....plan.gpu_plan import GpuPlan
from ..nvml.bounded_session import BoundedSession
from ..nvml.calls import IN_USE, RESET_REQUIRED, SUCCESS
from ..nvml.reset import reset_gpu
from .steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    MigStep,
    SetMigMode,
)

# Maximum number of holders in a message.
_NAMED = 5


def apply(session: BoundedSession, gpu_uuid: str, steps: Sequence[MigStep], done: Callable[[MigStep], None]) -> None:
    """Apply steps, and call `done` for each completed one.

    A change of the MIG mode is applied alone. Steps between two such changes are one request to the session. Raises
    NvmlError, or ResetRefusedError if the GPU refuses the reset that a mode change needs.
    """
    for _is_mode, group in itertools.groupby(steps, lambda step: isinstance(step, SetMigMode)):
        changes = list(group)
        modes = [step for step in changes if isinstance(step, SetMigMode)]
        for mode in modes:
            _set_mig_mode(session, gpu_uuid, mode.enabled)
            done(mode)
        if modes:
            continue
        requests = [_request(gpu_uuid, step) for step in changes]
        try:
            session.change(requests)
        finally:
            for step in changes[: session.completed]:
                done(step)


def _request(gpu: str, step: MigStep) -> tuple[str, tuple[Any, ...]]:
    """Return the session's method for a step, and its arguments."""
    if isinstance(step, DestroyComputeInstance):
        return "destroy_compute_instance", (gpu, step.gpu_instance_id, step.compute_instance_id)
    if isinstance(step, DestroyGpuInstance):
        return "destroy_gpu_instance", (gpu, step.gpu_instance_id)
    if isinstance(step, CreateGpuInstance):
        return "create_gpu_instance", (gpu, step.profile_id, step.placement)
    if isinstance(step, CreateComputeInstance):
        place = (step.gpu_instance_start, step.compute_slices, step.start)
        return "create_compute_instance", (gpu, step.profile_id, *place)
    raise TypeError("not a step: %r" % (step,))


def leave_pending(session: BoundedSession, plans: Sequence[GpuPlan]) -> None:
    """Set the changed MIG modes and leave them pending.

    The caller must reboot the host at once. If one mode cannot be set, all modes are reverted, and ApplyError is raised
    with the outcome "old", or "unknown" if the driver hangs.
    """
    set_so_far: list[str] = []
    try:
        for gpu_plan in plans:
            wanted = gpu_plan.target.division is not None
            set_so_far.append(gpu_plan.gpu.uuid)
            session.set_mig_mode(gpu_plan.gpu.uuid, wanted)
            if session.mig_mode(gpu_plan.gpu.uuid)[1] != wanted:
                problem = "the driver does not keep the MIG mode pending, so a reboot would not activate it"
                raise NvmlError(gpu_plan.gpu.label, problem, "Check the kernel log.", gpu=gpu_plan.gpu.uuid)
    except BaseException as error:
        for gpu in set_so_far:
            with contextlib.suppress(FleetError):
                session.set_mig_mode(gpu, session.mig_mode(gpu)[0])
        if not isinstance(error, FleetError):
            raise
        outcome = "unknown" if isinstance(error, UnansweredCallError) else "old"
        raise ApplyError(error.where, error.problem, error.cure, outcome=outcome) from error


def _set_mig_mode(session: BoundedSession, gpu: str, enabled: bool) -> None:
    """Set the MIG mode and verify that it is active.

    NVML's call also succeeds if the mode stays pending, so its activation status is checked.
    """
    before = session.mig_mode(gpu)[0]
    status = session.set_mig_mode(gpu, enabled)
    where = "gpu %s" % gpu
    try:
        if status == IN_USE:
            raise _in_use(session, gpu, where)
        if status not in (SUCCESS, RESET_REQUIRED):
            raise NvmlError(where, "its MIG mode did not change (activation status %d)" % status, gpu=gpu)
        if session.mig_mode(gpu)[0] != enabled:
            try:
                with session.suspended():
                    reset_gpu(gpu, session.simulated)
            except ResetRefusedError as error:
                _name_holders(session, gpu, error)
                raise
        if session.mig_mode(gpu)[0] != enabled:
            problem = "its MIG mode is still pending after a reset"
            raise ResetRefusedError(where, problem, "Check the kernel log.", gpu=gpu)
    except FleetError:
        # Revert the pending mode. Otherwise it would take effect at the next reset.
        with contextlib.suppress(FleetError):
            session.set_mig_mode(gpu, before)
        raise


def _in_use(session: BoundedSession, gpu: str, where: str) -> NvmlError:
    """Return the error for a GPU that the driver reports as in use.

    If no process uses the GPU, the kernel does. The error then recommends a reboot, unless the reboot would lose the
    pending mode.
    """
    host = session.observe(only=gpu)
    holders = blocking(find_holders(host), gpu)
    known = [each for each in host.gpus if each.uuid == gpu]
    if holders or not known:
        problem = "it is in use, so its MIG mode cannot change now: %s" % ", ".join(map(str, holders[:_NAMED]))
        return NvmlError(where, problem, "Stop the processes that use it and run again.", code=IN_USE, gpu=gpu)
    in_kernel = holders_in_kernel(known[0])
    problem = "no process uses it, but %s holds it inside the kernel, so its MIG mode cannot change now"
    error = ResetRefusedError if survives_reboot(known[0]) else NvmlError
    return error(where, problem % listing(in_kernel), without_reboot(in_kernel), code=IN_USE, gpu=gpu)


def _name_holders(session: BoundedSession, gpu: str, error: ResetRefusedError) -> None:
    """Add the holders inside the kernel to the error of a refused reset."""
    for known in session.observe(only=gpu).gpus:
        holders = holders_in_kernel(known) if known.uuid == gpu else ()
        if holders:
            error.problem = "%s, and %s holds it inside the kernel" % (error.problem.rstrip("."), listing(holders))
            error.cure = "%s %s" % (error.cure, without_reboot(holders))
