# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Implement openfleet.gpu.audit on the controller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Mapping

from ansible.utils.display import Display

from ..modules.audit import DOCUMENTATION
from ..plugin_utils.audit import answers, archive, pods, write, write_line
from ..plugin_utils.audit.compare import Former
from ..plugin_utils.audit.holdings import hosts_of
from ..plugin_utils.audit.jobs import slurm_of
from ..plugin_utils.audit.make import Order, make
from ..plugin_utils.audit.model import Audit
from ..plugin_utils.audit.options import OptionError, access, holidays, prices, seconds, thresholds
from ..plugin_utils.audit.owners import owners
from ..plugin_utils.audit.report_json import read_former, summary
from ..plugin_utils.audit.tell import Notice, NotifyError, tell
from ..plugin_utils.controller_action import ControllerAction
from ..plugin_utils.host_results import gpu_info_of_all, lost_notes
from ..plugin_utils.plain import plain

display = Display()

# A value of fail_on that refers to hosts. Other values are verdicts.
UNANSWERED = "unanswered"


class ActionModule(ControllerAction):
    documentation = DOCUMENTATION

    def work(self, arguments: dict[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        # Validate each host's result separately. A host with an invalid result counts as unanswered, like a host
        # without a driver.
        accepted, no_answers = answers.of_all(arguments.pop("answers"))
        jobs, nodes = slurm_of(arguments.pop("slurm"))
        states, refused = gpu_info_of_all({**arguments.pop("hosts"), **accepted})
        args = plain(arguments)
        pods_by_host, unknown = pods.look_up(states, pods.places(args["kubernetes"]))
        order = Order(
            window_seconds=seconds(args["window"]),
            access=access(args["prometheus"]),
            selector=args["selector"],
            hosts=hosts_of(states, pods_by_host),
            hosts_asked=args["hosts_asked"],
            refused=[*no_answers, *refused],
            notes=[*unknown, *lost_notes(states)],
            prices=prices(args["prices"]),
            currency=args["currency"],
            thresholds=thresholds(args["thresholds"]),
            exempt=args["exempt"],
            holidays=holidays(args["holidays"]),
            former=_former(args["previous"], args["directory"], args["keep"]),
            jobs=jobs,
            nodes=nodes,
            owners=owners(args["owners"]),
        )
        notices = [Notice.of(row) for row in args["notify"]]
        audit = make(order, time.time(), lambda line: display.display("audit: %s" % line))
        files = [] if self._task.check_mode else _written(audit, args["directory"], args["keep"])
        notified, failures = ([], []) if self._task.check_mode else _notify_all(notices, audit)
        result = _result(audit, files, notified, args["fail_on"])
        if failures:
            result.update(failed=True, msg=" ".join(filter(None, [result.get("msg"), *failures])))
        return result


def _former(previous: str | None, directory: str | None, keep: int) -> Mapping[str, Former]:
    """Return the previous report's findings by ID. Raises OptionError.

    The previous report is the given one, or else the latest in the directory.
    """
    if keep < 0:
        raise OptionError(
            "keep",
            "%d is not a number of reports" % keep,
            "Write 0 to keep only the latest report, or a larger number.",
        )
    if previous:
        return read_former(Path(previous))
    latest = Path(directory) / (archive.LATEST if keep else "") / write.JSON if directory else None
    return read_former(latest) if latest and latest.exists() else {}


def _written(audit: Audit, directory: str | None, keep: int) -> list[Path]:
    if not directory:
        return []
    return archive.keep(audit, Path(directory), keep) if keep else write.all_of(audit, Path(directory))


def _notify_all(notices: list[Notice], audit: Audit) -> tuple[list[str], list[str]]:
    """Notify all receivers, even if some fail. Return notified receivers and errors."""
    notified, failures = [], []
    for notice in notices:
        try:
            notified.append(tell(notice, audit))
        except NotifyError as error:
            failures.append(str(error))
    return notified, failures


def _result(audit: Audit, files: list[Path], notified: list[str], fail_on: list[str]) -> dict[str, Any]:
    sums = summary(audit)
    line = write_line.line(audit)
    counts = {**sums["words"], UNANSWERED: len(set(audit.sources.hosts_asked) - set(audit.sources.hosts_answered))}
    failing = {word: counts[word] for word in fail_on if counts[word]}
    result = {
        # Writing reports is not a change.
        "changed": False,
        "summary": sums,
        "line": line,
        "missing": list(audit.sources.missing),
        "files": [str(path) for path in files],
        "told": notified,
    }
    if failing:
        counted = ", ".join("%d %s" % (count, word) for word, count in failing.items())
        result.update(failed=True, msg="%s. Failed because of fail_on: %s." % (line, counted))
    return result
