# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run DCGM's diagnostic and read its JSON: ``dcgmi diag -r LEVEL -j``.

DCGM 4 lists its tests under "DCGM Diagnostic", with one result per entity and test. DCGM 3 lists its tests under "DCGM
GPU Diagnostic", with lists of GPUs per test (github.com/NVIDIA/DCGM: tests of nvvs' JSON and of dcgmi diag). Both
releases may print text before the JSON.
"""

from __future__ import annotations

import json
from typing import Any, Iterator

from ..processes.command import Run, TimeoutExpired, run_tool

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
LEVELS = (1, 2, 3, 4)


def read_dcgm(level: int, seconds: float, run: Run = run_tool) -> dict[str, Any]:
    """Return the tests of a diagnostic.

    `missing` has the reason if the diagnostic was not run. `problem` has the reason if it has no results.
    """
    command = ["dcgmi", "diag", "-r", str(level), "-j"]
    try:
        done = run(command, timeout_seconds=seconds)
    except FileNotFoundError:
        return {"level": level, "missing": "dcgmi is not installed", "problem": None, "tests": []}
    except TimeoutExpired:
        return {"level": level, "missing": None, "problem": "dcgmi diag did not end within %d s" % seconds, "tests": []}
    except OSError as error:
        return {"level": level, "missing": None, "problem": "dcgmi cannot be run: %s" % error, "tests": []}
    return dict(parse(done.stdout, done.returncode), level=level, missing=None)


def parse(text: str, status: int = 0) -> dict[str, Any]:
    """Return (`problem`, `tests`) from the JSON as a dictionary.

    `problem` is also set if the exit status reports a failure that no test explains.
    """
    try:
        # Skip warnings before the JSON.
        data, _end = json.JSONDecoder().raw_decode(text, text.index("{"))
        root = next(data[name] for name in _ROOTS if name in data)
        tests = [_test(category, test) for category, test in _tests(root)]
    except (ValueError, StopIteration, TypeError, AttributeError, KeyError):
        words = " ".join(text.split()[-30:])
        return {"problem": "dcgmi diag ended with status %d and no results: %s" % (status, words), "tests": []}
    problem = root.get("runtime_error") or None
    if not tests and not problem:
        problem = "dcgmi diag ended with status %d and ran no test" % status
    words = {result["status"].lower() for test in tests for result in test["results"]}
    if status and not problem and words <= {"pass", "skip"}:
        problem = "dcgmi diag ended with status %d, though no test failed" % status
    return {"problem": problem, "tests": tests}


def _tests(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for category in root.get("test_categories") or ():
        # DCGM 3 puts nulls between the tests.
        for test in filter(None, category.get("tests") or ()):
            yield str(category.get("category")), test


def _test(category: str, test: dict[str, Any]) -> dict[str, Any]:
    results = [_result(result) for result in test.get("results") or ()]
    summary = test.get("test_summary")
    if summary and not results:
        results = [_result(summary)]
    return {"category": category, "name": str(test.get("name")), "results": results}


def _result(result: dict[str, Any]) -> dict[str, Any]:
    warnings = result.get("warnings") or []
    if not isinstance(warnings, list):
        warnings = [warnings]
    messages = [str(each.get("warning") if isinstance(each, dict) else each) for each in warnings]
    return {"of": _entity(result), "status": str(result.get("status")), "warnings": messages}


def _entity(result: dict[str, Any]) -> str:
    if "entity_group" in result:
        return "%s %s" % (result["entity_group"], result.get("entity_id"))
    return "GPU %s" % result["gpu_ids"] if "gpu_ids" in result else ""
