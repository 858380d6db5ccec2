# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the errors of the collection, each with its place, problem and fix."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from .frozen import frozen

#: The layout after a failed apply. Unknown needs a check by hand.
OUTCOMES = ("old", "new", "unknown")


@frozen
class Problem:
    """One problem.

    `where` is its place, such as ``gpu_layout[2].mig[0].profile`` or a GPU's UUID.
    """

    where: str
    problem: str
    cure: str = ""

    def __str__(self) -> str:
        place = self.where + ": " if self.where else ""
        # Texts come with and without a final period.
        return (place + self.problem.rstrip(".") + ". " + self.cure).rstrip()


class FleetError(Exception):
    """Base of all errors that a user can fix."""

    #: Whether the host, not the inventory, is the cause. site.yml may then leave out the host.
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

    `problems` has all problems; where, problem and cure are those of the first.
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
    """A valid selector matches no GPU, or one that another selector matches.

    `more` has further such problems.
    """

    def __init__(self, where: str, problem: str, cure: str = "", more: Iterable[Problem] = ()) -> None:
        super().__init__(where, problem, cure)
        self.problems = (Problem(where, problem, cure), *more)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class PlanError(FleetError):
    """A valid layout is impossible on these GPUs."""


class NvmlError(FleetError):
    """An NVML call failed.

    `code` and `code_name` are NVML's, `gpu` is a UUID or index, or None.
    """

    host_fault = True
    #: Set by the caller of NVML.
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


class DriverAbsentError(NvmlError):
    """The host has no NVIDIA driver, no NVML library, or no Python binding for it."""


class UnansweredCallError(NvmlError):
    """An NVML call did not return in time, or ended its process.

    The whole driver may hang. `changes`: a GPU may have been changed before.
    """

    #: Xid 119 and 120 are GSP timeouts and errors (docs.nvidia.com/deploy/xid-errors).
    ADVICE = "Look for Xid 119 or 120 (GSP) in the kernel log, reset the GPU or reboot the host."

    def __init__(self, where: str, problem: str, *, call: str | None, changes: bool) -> None:
        gpu = where.partition("(")[2].rstrip(")") or None
        super().__init__(where, problem, self.ADVICE, call=call, gpu=gpu)
        self.changes = changes
        if not changes:
            self.cure += " Nothing was changed."


class ResetRefusedError(NvmlError):
    """A GPU cannot be reset to activate its pending MIG mode.

    A reboot of the host resets it too.
    """


class CommandTimeoutError(FleetError):
    """A query command did not end within its limit."""

    host_fault = True


class ApplyError(FleetError):
    """A plan could not be applied.

    `outcome` is the current layout (one of OUTCOMES), `steps_done` the completed steps. `reboot_needed`: a reset was refused, so
    only a reboot of the host activates the new layout.
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
    """The plan would interrupt holders (`disturbs`). The old layout is unchanged."""

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
    """Call all parts except None, even if one fails.

    Raises the only error, or an ApplyError with all.
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
