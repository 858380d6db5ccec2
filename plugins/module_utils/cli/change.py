# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the subcommands plan and apply."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, TypeVar

from ..change.converge import Request, converge, predict
from ..change.journal import Journal
from ..change.trial import settle
from ..errors import DriverAbsentError
from ..layout.files import read_layout
from ..model import Host, lost_of, to_data
from ..plan.busy import OnBusy
from ..techniques.forms import parse_layout
from .main import EXIT_CHANGES

T = TypeVar("T")
_POLL_SECONDS = 0.2


def plan(options: Namespace) -> int:
    """Print the plan that apply would run."""
    layout = parse_layout(read_layout(options.layout))
    request = Request(layout, options.state_directory, options.unlisted, lost=options.lost, unnamed=options.unnamed)
    run = predict(request, options.on_busy)
    _warn(run)
    interrupted = _is_interrupted(Journal(options.state_directory).read(), run.host)
    if interrupted:
        print("gpu-layout: an earlier run was interrupted, and apply will complete or undo it first", file=sys.stderr)
    if options.json:
        print(json.dumps(dict(_result(run), cut_off=interrupted), indent=2))
    else:
        print("\n".join([*run.lines(), *_in_the_way(run), _planned(run.plan.counts())]))
    return EXIT_CHANGES if options.exit_code and (run.changed or interrupted) else 0


def _is_interrupted(entry: Any, host: Host) -> bool:
    """Return whether apply would complete an interrupted run.

    Returns False for a journal that only has targets of lost GPUs, which apply keeps until the GPUs work again.
    """
    targets = () if entry is None else (*entry.before, *entry.after)
    return entry is not None and (not targets or any(lost_of(host, target.gpu_uuid) is None for target in targets))


def apply(options: Namespace) -> int:
    """Apply the layout, and print the plan that was applied."""
    if options.layout != "-" and settle(Path(options.layout), options.state_directory):
        _say("the previous layout was restored: a run ended before it left its MIG modes pending for a reboot")
        if not Path(options.layout).exists():
            _say("there was no previous layout, so nothing is applied")
            return 0
    request = Request(
        parse_layout(read_layout(options.layout)),
        options.state_directory,
        options.unlisted,
        services=options.restart_services,
        lost=options.lost,
        unnamed=options.unnamed,
    )
    on_busy = OnBusy(options.on_busy, options.busy_timeout, options.grace_period, _say)
    run = _patient(lambda: converge(request, options.lock_timeout, on_busy), options.driver_timeout)
    _warn(run)
    if options.json:
        done = {"recovered": run.recovered, "ended": list(run.ended), "followed": list(run.followed)}
        print(json.dumps(dict(_result(run), **done), indent=2))
        return 0
    if run.recovered:
        print("an earlier run was interrupted, and this run started from the %s layout" % run.recovered)
    for who in run.ended:
        print("ended: %s" % who)
    print("\n".join([*run.lines(), *run.followed, _done(run.plan.counts())]))
    return 0


def _patient(attempt: Callable[[], T], seconds: float) -> T:
    """Call `attempt` and return its result.

    Retry for `seconds` while the host has no driver.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except DriverAbsentError as error:
            # Waiting does not help if a Python module is missing.
            if error.call == "import" or time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _say(text: str) -> None:
    """Print progress on standard error."""
    print("gpu-layout: %s" % text, file=sys.stderr, flush=True)


def _warn(run: Any) -> None:
    for text in (*run.warnings, *run.not_restored):
        _say(text)


def _result(run: Any) -> dict[str, Any]:
    busy = [disturbance.to_data() for disturbance in run.plan.disturbs]
    data = {
        "changed": run.changed,
        "plan": run.lines(),
        "counts": run.plan.counts(),
        "busy": busy,
    }
    if run.unmanaged:
        data["unmanaged"] = [to_data(each) for each in run.unmanaged]
    warnings = [*run.warnings, *run.not_restored]
    return dict(data, warnings=warnings) if warnings else data


def _in_the_way(run: Any) -> list[str]:
    return ["blocking: %s" % disturbance for disturbance in run.plan.disturbs]


def _planned(counts: dict[str, int]) -> str:
    gpus = "%s to change" % _gpus(counts["gpus_changed"]) if counts["gpus_changed"] else "nothing to change"
    return "Plan: %d to create, %d to destroy, %d kept; %s" % (
        counts["create"],
        counts["destroy"],
        counts["keep"],
        gpus,
    )


def _done(counts: dict[str, int]) -> str:
    gpus = "%s changed" % _gpus(counts["gpus_changed"]) if counts["gpus_changed"] else "nothing changed"
    return "Done: %d created, %d destroyed, %d kept; %s" % (counts["create"], counts["destroy"], counts["keep"], gpus)


def _gpus(count: int) -> str:
    return "%d GPU%s" % (count, "" if count == 1 else "s")
