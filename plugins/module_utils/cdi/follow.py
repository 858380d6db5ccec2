# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Regenerate CDI specifications and restart services after MIG devices changed.

`look` reads the host. `steps` is a pure function that decides. `follow` runs the steps. docs/after-a-change.md
describes them for users.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence, Union

from .. import systemd
from ..errors import FollowError, Problem
from ..frozen import frozen
from ..processes.command import Run, ask, run_tool
from . import nvidia_ctk

#: The systemd service that writes /var/run/cdi/nvidia.yaml. It exists since release 1.18 of the container toolkit and
#: does not react to MIG changes: https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828
REFRESH = "nvidia-cdi-refresh.service"
#: The service that lists the devices for Slurm jobs. Its unit becomes inactive when it is done (role gpu_slurm).
SLURM_DEVICES = "openfleet-slurm-devices.service"
BOOT = systemd.BOOT

#: Time limit for a restart. systemd's own defaults are 90 s for stopping a service and 90 s for starting it
#: (systemd-system.conf(5)).
_RESTART_SECONDS = 300
_PROPERTIES = ("Id", "LoadState", "ActiveState", "UnitFileState", "InvocationID")


@frozen
class Unit:
    """The state of a systemd unit.

    `name` is the Id of the unit, even if an alias was queried.
    """

    name: str
    load: str
    active: str
    enabled: str
    #: systemd's InvocationID, which changes with each start.
    invocation: str

    @property
    def running(self) -> bool:
        return self.active not in ("inactive", "failed", "deactivating", "maintenance")


@frozen
class Seen:
    """The CDI specifications and services of a host.

    `starting` is true while the host boots, when systemd jobs may wait until this process ends.
    """

    toolkit: bool = False
    specs: tuple[nvidia_ctk.Spec, ...] = ()
    passing_specs: tuple[nvidia_ctk.Spec, ...] = ()
    refresh: Unit | None = None
    services: tuple[Unit, ...] = ()
    starting: bool = False


@frozen
class Restart:
    """Restart a unit. If `wait` is false, only queue the job in systemd."""

    unit: Unit
    #: "restart" also starts a unit that is stopped. "try-restart" does not.
    verb: str
    wait: bool


@frozen
class Renew:
    """Regenerate a specification, unless its file has changed since `look` read it."""

    spec: nvidia_ctk.Spec


Step = Union[Restart, Renew]


def follow(services: Sequence[str], run: Run = run_tool, root: str = "/", again: bool = False) -> tuple[str, ...]:
    """Regenerate specifications and restart services after devices have changed.

    Returns a text for each action. Restarts those `services` that are running. If `again` is true, also restarts those
    that have failed. Set `again` if this run completes the follow-up of an earlier run (`PendingFollowUp.due`). Raises
    FollowError with all failures. A failure does not roll back the layout.
    """
    done: list[str] = []
    problems: list[Problem] = []
    seen, problem = look(services, run, Path(root))
    for step in steps(seen, again):
        text, failed = _restart(step, run) if isinstance(step, Restart) else _renew(step, run)
        done += [text] if text else []
        problems += [failed] if failed else []
    problems += [problem] if problem else []
    if problems:
        raise FollowError(problems, steps_done=done)
    return tuple(done)


def predict(services: Sequence[str], run: Run = run_tool, root: str = "/", again: bool = False) -> tuple[str, ...]:
    """Return a text for each action that `follow` would take. Changes nothing."""
    seen, _problem = look(services, run, Path(root))
    return tuple(
        "restart %s" % step.unit.name if isinstance(step, Restart) else "write %s again" % step.spec.path
        for step in steps(seen, again)
    )


def steps(seen: Seen, again: bool = False) -> tuple[Step, ...]:
    """Return the steps in order.

    Specifications come first, because a service may be a container that uses them.
    """
    wait = not seen.starting
    result: list[Step] = []
    specs = seen.specs + seen.passing_specs
    if seen.toolkit:
        if seen.refresh is not None and _refreshes(seen.refresh):
            # The unit stays active after it is done, so "start" would not run it again.
            result.append(Restart(seen.refresh, "restart", wait))
            if not wait:
                # This unit runs after the current process, and writes these files with its own settings.
                specs = seen.specs
        result += map(Renew, specs)
    for unit in seen.services:
        if unit.name == SLURM_DEVICES:
            if _refreshes(unit):
                result.append(Restart(unit, "restart", wait))
        elif unit.running:
            result.append(Restart(unit, "try-restart", wait))
        elif again and unit.active == "failed":
            result.append(Restart(unit, "restart", wait))
    return tuple(result)


def _refreshes(unit: Unit) -> bool:
    """Return whether the refresh unit runs, has failed or is enabled."""
    return unit.load == "loaded" and (
        unit.running or unit.active == "failed" or unit.enabled.startswith(("enabled", "linked"))
    )


def look(services: Sequence[str], run: Run, root: Path) -> tuple[Seen, Problem | None]:
    """Read the specifications and services.

    Also returns the problem if systemd does not answer.
    """
    toolkit = True
    try:
        ask(run, [nvidia_ctk.TOOL, "--version"])
    except FileNotFoundError:
        toolkit = False
    specs = tuple(nvidia_ctk.find_specs(root / nvidia_ctk.LASTING)) if toolkit else ()
    passing = tuple(nvidia_ctk.find_specs(root / nvidia_ctk.PASSING)) if toolkit else ()
    seen = Seen(toolkit, specs, passing)
    # If systemd is not the init system, there are no units to restart.
    if not systemd.booted(root):
        return seen, None
    try:
        boot, refresh, *asked = _units([BOOT, REFRESH, SLURM_DEVICES, *services], run)
        starting = systemd.starting(run, boot.active)
    except FileNotFoundError:
        return seen, None
    except systemd.NoAnswerError as error:
        problem = "cannot tell which services must be restarted: %s" % error
        cure = "Restart services that list MIG devices by hand, or fix systemd and run again."
        return seen, Problem("this host", problem, cure)
    by_name = {unit.name: unit for unit in asked if unit.name not in (BOOT, REFRESH)}
    return Seen(toolkit, specs, passing, refresh, tuple(by_name.values()), starting), None


def _units(names: Sequence[str], run: Run) -> list[Unit]:
    return [Unit(*(values[key] for key in _PROPERTIES)) for values in systemd.show(run, names, _PROPERTIES)]


def _restart(step: Restart, run: Run) -> tuple[str | None, Problem | None]:
    """Restart a unit. Return (text for the action, problem)."""
    name = step.unit.name
    if not step.wait:
        systemd.reset_failed(run, [name])
        _text, problem = ask(run, ["systemctl", "--no-block", step.verb, "--", name])
        return (None, _not_restarted(name, problem)) if problem else ("restart of %s queued in systemd" % name, None)
    try:
        now = _units([name], run)[0]
    except systemd.NoAnswerError as error:
        return None, _not_restarted(name, str(error))
    if now.running and now.invocation != step.unit.invocation:
        # The service has already restarted because a service that it depends on was restarted.
        return "%s restarted" % name, None
    systemd.reset_failed(run, [name])
    _text, problem = ask(run, ["systemctl", step.verb, "--", name], timeout_seconds=_RESTART_SECONDS)
    return (None, _not_restarted(name, problem)) if problem else ("%s restarted" % name, None)


def _not_restarted(name: str, problem: str) -> Problem:
    return Problem(
        name,
        "its devices have changed, but it could not be restarted: %s" % problem,
        "See `journalctl --unit %s`, fix it and run again." % name,
    )


def _renew(step: Renew, run: Run) -> tuple[str | None, Problem | None]:
    if not nvidia_ctk.unchanged(step.spec):
        return None, None
    changed, problem = nvidia_ctk.renew(step.spec, run)
    return ("CDI: %s written again" % step.spec.path if changed else None), problem
