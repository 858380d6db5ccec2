# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renew CDI specifications and restart services after a change of MIG.

`look` reads the host, `steps` decides (it is pure), `follow` acts. docs/after-a-change.md is the documentation for users.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Sequence, Union

from . import systemd
from .command import Run, ask, run_tool
from .errors import FollowError, Problem
from .frozen import frozen

if TYPE_CHECKING:
    from . import cdi

#: Writes /var/run/cdi/nvidia.yaml, since release 1.18 of the container toolkit. It does not react to MIG changes:
#: https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828
REFRESH = "nvidia-cdi-refresh.service"
BOOT = systemd.BOOT

#: systemd's own defaults are 90 s for a service to stop and 90 s to start (systemd-system.conf(5)).
_RESTART_SECONDS = 300
_PROPERTIES = ("Id", "LoadState", "ActiveState", "UnitFileState", "InvocationID")


@frozen
class Unit:
    """State of a unit from systemd. `name` is its Id, not the alias of the query."""

    name: str
    load: str
    active: str
    enabled: str
    #: A new id for each start.
    invocation: str

    @property
    def running(self) -> bool:
        return self.active not in ("inactive", "failed", "deactivating", "maintenance")


@frozen
class Seen:
    """CDI specifications and services of a host.

    `starting`: jobs of systemd may be waiting for this process to end.
    """

    toolkit: bool = False
    specs: tuple[cdi.Spec, ...] = ()
    passing_specs: tuple[cdi.Spec, ...] = ()
    refresh: Unit | None = None
    services: tuple[Unit, ...] = ()
    starting: bool = False


@frozen
class Restart:
    """Restart a unit. Without `wait` only queue the job in systemd."""

    unit: Unit
    #: restart also starts a stopped unit, try-restart does not.
    verb: str
    wait: bool


@frozen
class Renew:
    """Renew a specification, unless it has changed since it was read."""

    spec: cdi.Spec


Step = Union[Restart, Renew]


def follow(services: Sequence[str], run: Run = run_tool, root: str = "/", again: bool = False) -> tuple[str, ...]:
    """Renew specifications and restart services after the new devices exist.

    Return a text for each action. Running `services` are restarted. With `again`, which completes an earlier run
    (`PendingFollowUp.due`), failed ones are too. Raises FollowError with everything that failed. The layout itself is not rolled
    back.
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
    """Return a text for each action of `follow`. Changes nothing."""
    seen, _problem = look(services, run, Path(root))
    return tuple(
        "restart %s" % step.unit.name if isinstance(step, Restart) else "write %s again" % step.spec.path
        for step in steps(seen, again)
    )


def steps(seen: Seen, again: bool = False) -> tuple[Step, ...]:
    """Return the steps in order: specifications first, since services may be containers that use them."""
    wait = not seen.starting
    result: list[Step] = []
    specs = seen.specs + seen.passing_specs
    if seen.toolkit:
        if seen.refresh is not None and _refreshes(seen.refresh):
            # It stays active after its work, so a start would do nothing.
            result.append(Restart(seen.refresh, "restart", wait))
            if not wait:
                # It runs after this process and writes these files with its own settings.
                specs = seen.specs
        result += map(Renew, specs)
    for unit in seen.services:
        if unit.running:
            result.append(Restart(unit, "try-restart", wait))
        elif again and unit.active == "failed":
            result.append(Restart(unit, "restart", wait))
    return tuple(result)


def _refreshes(unit: Unit) -> bool:
    """Return whether the unit is in use: loaded, and running, failed or enabled."""
    return unit.load == "loaded" and (
        unit.running or unit.active == "failed" or unit.enabled.startswith(("enabled", "linked"))
    )


def look(services: Sequence[str], run: Run, root: Path) -> tuple[Seen, Problem | None]:
    """Read specifications and services.

    Also return the problem if systemd does not answer.
    """
    from . import cdi

    toolkit = True
    try:
        ask(run, [cdi.TOOL, "--version"])
    except FileNotFoundError:
        toolkit = False
    specs = tuple(cdi.find_specs(root / cdi.LASTING)) if toolkit else ()
    passing = tuple(cdi.find_specs(root / cdi.PASSING)) if toolkit else ()
    seen = Seen(toolkit, specs, passing)
    # Without systemd as init there is nothing to restart.
    if not systemd.booted(root):
        return seen, None
    try:
        boot, refresh, *asked = _units([BOOT, REFRESH, *services], run)
        starting = systemd.starting(run, boot.active)
    except FileNotFoundError:
        return seen, None
    except systemd.NoAnswerError as error:
        problem = "which services have to be restarted is not known: %s" % error
        cure = "Restart services that list MIG devices by hand, or fix systemd and run again."
        return seen, Problem("this host", problem, cure)
    by_name = {unit.name: unit for unit in asked if unit.name not in (BOOT, REFRESH)}
    return Seen(toolkit, specs, passing, refresh, tuple(by_name.values()), starting), None


def _units(names: Sequence[str], run: Run) -> list[Unit]:
    return [Unit(*(values[key] for key in _PROPERTIES)) for values in systemd.show(run, names, _PROPERTIES)]


def _restart(step: Restart, run: Run) -> tuple[str | None, Problem | None]:
    """Restart a unit. Return (text of the action, problem)."""
    name = step.unit.name
    if not step.wait:
        systemd.reset_failed(run, [name])
        _text, problem = ask(run, ["systemctl", "--no-block", step.verb, "--", name])
        return (None, _not_restarted(name, problem)) if problem else ("%s is to be restarted by systemd" % name, None)
    try:
        now = _units([name], run)[0]
    except systemd.NoAnswerError as error:
        return None, _not_restarted(name, str(error))
    if now.running and now.invocation != step.unit.invocation:
        # A dependency restarted it already.
        return "%s restarted" % name, None
    systemd.reset_failed(run, [name])
    _text, problem = ask(run, ["systemctl", step.verb, "--", name], timeout_seconds=_RESTART_SECONDS)
    return (None, _not_restarted(name, problem)) if problem else ("%s restarted" % name, None)


def _not_restarted(name: str, problem: str) -> Problem:
    return Problem(
        name,
        "it was to be restarted, because its devices have changed: %s" % problem,
        "See journalctl --unit %s, fix it and run again." % name,
    )


def _renew(step: Renew, run: Run) -> tuple[str | None, Problem | None]:
    from . import cdi

    if not cdi.unchanged(step.spec):
        return None, None
    changed, problem = cdi.renew(step.spec, run)
    return ("CDI: %s written again" % step.spec.path if changed else None), problem
