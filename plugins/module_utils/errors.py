# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the collection's errors, each with its place, problem and fix."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from .frozen import frozen

#: The layout after a failed apply. If it is "unknown", an administrator must check the host.
OUTCOMES = ("old", "new", "unknown")


@frozen
class Problem:
    """A problem with its place.

    `where` is, for example, ``gpu_layout[2].mig[0].profile`` or a GPU's UUID.
    """

    where: str
    problem: str
    cure: str = ""

    def __str__(self) -> str:
        place = self.where + ": " if self.where else ""
        # Some texts end with a period and some do not.
        return (place + self.problem.rstrip(".") + ". " + self.cure).rstrip()


class FleetError(Exception):
    """Base class of all errors that a user can fix."""

    #: Whether the host is the cause, and not the inventory. site.yml may then skip the host.
    host_fault = False

    def __init__(self, where: str, problem: str, cure: str = "") -> None:
        super().__init__(where, problem, cure)
        self.where = where
        self.problem = problem
        self.cure = cure

    def __str__(self) -> str:
        return str(Problem(self.where, self.problem, self.cure))


class LayoutError(FleetError):
    """`gpu_layout` is malformed.

    `problems` has all problems. `where`, `problem` and `cure` describe the first one.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        if not self.problems:
            raise ValueError("a LayoutError needs at least one problem")
        first = self.problems[0]
        super().__init__(first.where, first.problem, first.cure)
        self.args = (self.problems,)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class SelectorError(FleetError):
    """A valid selector matches no GPU, or a GPU that another selector matches too.

    `more` has more problems of this kind.
    """

    def __init__(self, where: str, problem: str, cure: str = "", more: Iterable[Problem] = ()) -> None:
        super().__init__(where, problem, cure)
        self.problems = (Problem(where, problem, cure), *more)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class PlanError(FleetError):
    """A valid layout cannot be applied to these GPUs."""


class DeviceError(FleetError):
    """A call to the driver failed.

    `code` and `code_name` are the driver's error code and its name. `gpu` is the UUID or index of the GPU, or None.
    """

    host_fault = True
    #: The driver's codes for a GPU that is in use and for an unknown failure. None if the driver has no such codes.
    IN_USE: int | None = None
    UNKNOWN: int | None = None
    #: Name of the code, set by the code that calls NVML.
    code_name: str | None = None

    def __init__(
        self,
        where: str,
        problem: str,
        cure: str = "",
        *,
        call: str | None = None,
        code: int | None = None,
        gpu: str | None = None,
    ) -> None:
        super().__init__(where, problem, cure)
        self.call = call
        self.code = code
        self.gpu = gpu


class NvmlError(DeviceError):
    """An NVML call failed."""

    IN_USE, UNKNOWN = 19, 999


class DriverAbsentError(NvmlError):
    """The NVIDIA driver, the NVML library or its Python binding is missing."""


class UnansweredCallError(NvmlError):
    """An NVML call did not return in time, or its process ended.

    The whole driver may hang. `changes` is true if a GPU may have been changed before this call.
    """

    #: Xid 119 and 120 are timeouts and errors of the GSP (docs.nvidia.com/deploy/xid-errors).
    ADVICE = "Look for Xid 119 or 120 (GSP) in the kernel log, reset the GPU or reboot the host."

    def __init__(self, where: str, problem: str, *, call: str | None, changes: bool) -> None:
        gpu = where.partition("(")[2].rstrip(")") or None
        super().__init__(where, problem, self.ADVICE, call=call, gpu=gpu)
        self.changes = changes
        if not changes:
            self.cure += " Nothing was changed."


class ResetRefusedError(NvmlError):
    """A GPU refused the reset that would activate its pending MIG mode.

    A reboot of the host also resets the GPU.
    """


class CommandTimeoutError(FleetError):
    """A query command exceeded its time limit."""

    host_fault = True


class ApplyError(FleetError):
    """A plan could not be applied.

    `outcome` is the current layout (one of OUTCOMES). `steps_done` has the completed steps. `reboot_needed` is true if
    a reset was refused, so that only a reboot of the host activates the new layout.
    """

    host_fault = True

    def __init__(
        self,
        where: str,
        problem: str,
        cure: str = "",
        *,
        outcome: str = "unknown",
        steps_done: Iterable[str] = (),
        reboot_needed: bool = False,
    ) -> None:
        if outcome not in OUTCOMES:
            raise ValueError("outcome must be one of %s, not %r" % (", ".join(OUTCOMES), outcome))
        super().__init__(where, problem, cure)
        self.outcome = outcome
        self.steps_done: tuple[str, ...] = tuple(steps_done)
        self.reboot_needed = reboot_needed


class BusyError(ApplyError):
    """The plan would interrupt holders, so the old layout is unchanged.

    `disturbs` has the holders.
    """

    def __init__(
        self, disturbs: Iterable[Any], problem: str, cure: str = "", *, steps_done: Iterable[str] = ()
    ) -> None:
        self.disturbs = tuple(disturbs)
        where = "; ".join(map(str, self.disturbs))
        super().__init__(where, problem, cure, outcome="old", steps_done=steps_done)


class FollowError(ApplyError):
    """The layout was applied, but a dependent service or file was not updated.

    `problems` has all problems.
    """

    def __init__(self, problems: Iterable[Problem], *, steps_done: Iterable[str] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        if not self.problems:
            raise ValueError("a FollowError needs at least one problem")
        first = self.problems[0]
        super().__init__(first.where, first.problem, first.cure, outcome="new", steps_done=steps_done)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def attempt_all(*parts: Callable[[], None] | None) -> None:
    """Call all parts that are not None, even if one of them fails.

    Raises the error of the part that failed, or one ApplyError with the problems of several parts.
    """
    errors: list[FleetError] = []
    for part in filter(None, parts):
        try:
            part()
        except FleetError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        first, *more = errors
        problems = "; ".join([first.problem, *("%s: %s" % (error.where, error.problem) for error in more)])
        raise ApplyError(first.where, problems, " ".join(dict.fromkeys(error.cure for error in errors))) from first
