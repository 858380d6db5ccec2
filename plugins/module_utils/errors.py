# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error tree: every error says where it is, what is wrong and how to mend it."""

from __future__ import annotations

from typing import Any, Callable, Iterable

from .frozen import frozen

#: What a failed apply leaves behind: the old layout, the new one, or something a person must look at.
OUTCOMES = ("old", "new", "unknown")


@frozen
class Problem:
    """One finding. `where` names the place, e.g. ``gpu_layout[2].mig[0].profile`` or a GPU's UUID."""

    where: str
    problem: str
    cure: str = ""

    def __str__(self) -> str:
        place = self.where + ": " if self.where else ""
        # The stop between problem and cure is ours, so that texts with and without one read alike.
        return (place + self.problem.rstrip(".") + ". " + self.cure).rstrip()


class FleetError(Exception):
    """Base of all errors of the collection that a user can do something about."""

    #: Whether the state of the host is the reason, and not the inventory. site.yml may leave out such a host.
    host_fault = False

    def __init__(self, where: str, problem: str, cure: str = "") -> None:
        super().__init__(where, problem, cure)
        self.where = where
        self.problem = problem
        self.cure = cure

    def __str__(self) -> str:
        return str(Problem(self.where, self.problem, self.cure))


class LayoutError(FleetError):
    """`gpu_layout` is malformed. Carries all problems found; where, problem and cure are the first one's."""

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
    """A well-formed selector that does not name GPUs of this host, or names one twice. `more` are further such problems."""

    def __init__(self, where: str, problem: str, cure: str = "", more: Iterable[Problem] = ()) -> None:
        super().__init__(where, problem, cure)
        self.problems = (Problem(where, problem, cure), *more)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class PlanError(FleetError):
    """A well-formed layout that cannot be had on these GPUs."""


class NvmlError(FleetError):
    """An NVML call failed. `code` and `code_name` are NVML's, `gpu` is a UUID or index, or None."""

    host_fault = True
    #: Set by what calls NVML, which knows it.
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
    """There is no NVIDIA driver, no NVML library, or no Python binding for it on the host."""


class UnansweredCallError(NvmlError):
    """An NVML call did not return within its limit, or ended the process that made it. The driver as a whole may hang.

    `changes` says whether a GPU may have been changed before.
    """

    #: What helps. Xid 119 and 120 are GSP timeouts and errors (docs.nvidia.com/deploy/xid-errors).
    ADVICE = "Look for Xid 119 or 120 (GSP) in the kernel log, reset the GPU or reboot the host."

    def __init__(self, where: str, problem: str, *, call: str | None, changes: bool) -> None:
        gpu = where.partition("(")[2].rstrip(")") or None
        super().__init__(where, problem, self.ADVICE, call=call, gpu=gpu)
        self.changes = changes
        if not changes:
            self.cure += " Nothing was changed."


class ResetRefusedError(NvmlError):
    """A GPU cannot be reset, and so does not get the MIG mode that waits for it. A reboot of the host resets it too."""


class CommandTimeoutError(FleetError):
    """A command of the host that was asked something did not end within its limit."""

    host_fault = True


class ApplyError(FleetError):
    """A plan could not be carried out. `outcome` (one of OUTCOMES) says what stands now; `steps_done` what was done.

    `reboot_needed` where a reset was refused, so that only a reboot of the host brings the new layout about.
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
    """What the plan would end is in use. `disturbs` are the plan's Disturbances; the old layout stands."""

    def __init__(
        self, disturbs: Iterable[Any], problem: str, cure: str = "", *, steps_done: Iterable[str] = ()
    ) -> None:
        self.disturbs = tuple(disturbs)
        where = "; ".join(str(found) for found in self.disturbs)
        super().__init__(where, problem, cure, outcome="old", steps_done=steps_done)


class FollowError(ApplyError):
    """The new layout stands, but something that had to follow the change did not. Carries all problems found."""

    def __init__(self, problems: Iterable[Problem], *, steps_done: Iterable[str] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        if not self.problems:
            raise ValueError("a FollowError needs at least one problem")
        first = self.problems[0]
        super().__init__(first.where, first.problem, first.cure, outcome="new", steps_done=steps_done)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def attempt_all(*parts: Callable[[], None] | None) -> None:
    """Call every part that is there, also after one that failed. Raises the only error, or one ApplyError with all of them."""
    errors: list[FleetError] = []
    for part in filter(None, parts):
        try:
            part()
        except FleetError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        first, *others = errors
        said = "; ".join([first.problem, *("%s: %s" % (error.where, error.problem) for error in others)])
        raise ApplyError(first.where, said, " ".join(dict.fromkeys(error.cure for error in errors))) from first
