# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the output of the helper on hosts (gpu-layout holders --json). Pure.

A compromised host can print any text. So the text must be JSON of limited size. host_results.py then checks its content
like a result of gpu_info.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ..host_values import text
from ..plain import plain

#: Maximum size of the text. A host with 8 GPUs and hundreds of processes prints a few hundred KiB.
MOST_BYTES = 16 * 1024 * 1024


class AnswerError(FleetError):
    """The text is not valid output of the helper."""


def of_all(results: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Read the results of the task that runs the helper on all hosts.

    Returns (answers by host in the format of gpu_info, reasons why answers were rejected).
    """
    answers: dict[str, dict[str, Any]] = {}
    refused = []
    for host, result in results.items():
        try:
            answer = of_helper(plain(host), result)
        except AnswerError as error:
            refused.append(str(error))
            continue
        if answer is not None:
            answers[plain(host)] = answer
    return answers, refused


def of_helper(host: str, result: Any) -> dict[str, Any] | None:
    """Return the object that the helper printed, or None if the host did not answer.

    Raises AnswerError.
    """
    if not isinstance(result, Mapping) or "stdout" not in result:
        return None
    output = plain(result["stdout"])
    if not isinstance(output, str):
        raise _refused(host, "it is not text")
    if len(output) > MOST_BYTES:
        raise _refused(host, "it has %d characters, more than %d" % (len(output), MOST_BYTES))
    if result.get("rc") != 0 and not output.lstrip().startswith("{"):
        # sudo refused, or the command is missing. Ansible has already reported this failure.
        return None
    try:
        answer = json.loads(output, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _refused(host, "it is not JSON: %s" % text(str(error))) from None
    if not isinstance(answer, dict):
        raise _refused(host, "it is not an object")
    problem = answer.get("error")
    if isinstance(problem, dict):
        raise AnswerError(host, "its helper failed: %s" % text(problem.get("problem")), text(problem.get("cure") or ""))
    if "gpus" not in answer:
        raise _refused(host, "it has no gpus")
    return answer


def _no_number(written: str) -> None:
    raise ValueError("%s is not a number" % written)


def _refused(host: str, problem: str) -> AnswerError:
    return AnswerError(host, "its answer is rejected, %s" % problem, "Check the program gpu-layout on the host.")
