# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the helper on a host (gpu-layout holders --json) printed. Pure.

A host that was taken over prints what it likes: the text has a size and is JSON, or it is refused. What is in it is checked as a
result of gpu_info is (host_results).
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from ...module_utils.errors import FleetError
from ..host_values import text
from ..plain import plain

#: A host of 8 GPUs with hundreds of processes prints some hundred KiB.
MOST_BYTES = 16 * 1024 * 1024


class AnswerError(FleetError):
    """A text that is no answer of the helper."""


def of_all(results: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return (by host what the helpers say, as gpu_info returns it; why an answer is refused), of results of the task."""
    found: dict[str, dict[str, Any]] = {}
    refused = []
    for host, result in results.items():
        try:
            answer = of_helper(plain(host), result)
        except AnswerError as error:
            refused.append(str(error))
            continue
        if answer is not None:
            found[plain(host)] = answer
    return found, refused


def of_helper(host: str, result: Any) -> dict[str, Any] | None:
    """Return the object that the helper printed; None for a host that did not answer. Raises AnswerError."""
    if not isinstance(result, Mapping) or "stdout" not in result:
        return None
    said = plain(result["stdout"])
    if not isinstance(said, str):
        raise _refused(host, "it is no text")
    if len(said) > MOST_BYTES:
        raise _refused(host, "it has %d letters, and %d are the most" % (len(said), MOST_BYTES))
    if result.get("rc") != 0 and not said.lstrip().startswith("{"):
        # sudo refused, or there is no such command: Ansible has told.
        return None
    try:
        answer = json.loads(said, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _refused(host, "it is no JSON: %s" % text(str(error))) from None
    if not isinstance(answer, dict):
        raise _refused(host, "it is no object")
    problem = answer.get("error")
    if isinstance(problem, dict):
        raise AnswerError(host, "its helper says: %s" % text(problem.get("problem")), text(problem.get("cure") or ""))
    if "gpus" not in answer:
        raise _refused(host, "it has no gpus")
    return answer


def _no_number(written: str) -> None:
    raise ValueError("%s is no number" % written)


def _refused(host: str, problem: str) -> AnswerError:
    return AnswerError(host, "its answer is not taken, %s" % problem, "See what runs there as gpu-layout.")
