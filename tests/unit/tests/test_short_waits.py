# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find waits in tests that are too short for a busy machine.

Such waits are limits below 10 s, and sleeps instead of conditions. A limit is harmless if the test expects nothing to
happen within it. KEPT lists these limits with the reason. A limit of 0 does not wait.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Iterator

import pytest
import yaml

from tests.unit.yaml_files import LOADER

ROOT = Path(__file__).parents[3]
LEAST_SECONDS = 10
TIMEOUT = "it tests the timeout itself, which a slow machine reaches too"
AT_LEAST = "at least this time must pass, and more does no harm"
NOTHING = "nothing may happen in this time, and a slow machine only makes the test weaker"
GRACE = "whether a workload ends by SIGTERM or by SIGKILL makes no difference to the test"
#: Alerts wait for several missed scrapes (watched_fleet.py).
SCRAPE = "it must not exceed the interval of scrapes, and a missed scrape is repeated"
SLOW = "it stands for a slow program"
SERVER = "a pause between the bytes of a slow server"
#: {path: {source text of the limit: reason}}
KEPT = {
    "molecule/slurm_accounting/tests/hosts/test_jobs.py": {"timeout_seconds=5": TIMEOUT},
    "tests/adversary/test_hostile_cluster.py": {"ends.wait(0.05)": SERVER},
    "tests/adversary/test_hostile_hiding.py": {"grace_seconds=0.2": "the process ignores SIGTERM"},
    "tests/adversary/test_hostile_host.py": {"'reclaim_grace_seconds': 1": GRACE},
    "tests/adversary/test_hostile_reclaim.py": {"'reclaim_grace_seconds': 1": GRACE},
    "tests/adversary/test_hostile_user.py": {"deadline=1.0": "its clock is a list"},
    "tests/integration/cli/test_on_gpus.py": {"time.sleep(1)": NOTHING},
    "tests/integration/modules/test_check_gpu.py": {"'--timeout', '5'": TIMEOUT},
    "tests/integration/modules/test_site_on_busy.py": {"busy_timeout=3": TIMEOUT},
    "tests/integration/modules/test_waiting_and_forcing.py": {
        "busy_timeout=1": TIMEOUT,
        "grace_period=1": "the process ignores SIGTERM",
        "threading.Timer(1.5)": "the run may also find the job ended",
    },
    "tests/kubernetes/dra_node.py": {"self._stopped.wait(0.2)": "it is called in a loop until the test ends it"},
    "tests/kubernetes/test_role.py": {"gpu_kubernetes_timeout=2": TIMEOUT, "'gpu_drain_timeout': 2": TIMEOUT},
    "tests/kubernetes/test_operator.py": {"gpu_kubernetes_timeout=2": TIMEOUT},
    "tests/kubernetes/test_volcano.py": {"gpu_kubernetes_timeout=5": TIMEOUT},
    "tests/kubernetes/volcano.py": {"self._stopped.wait(2)": "the interval of a plugin that is stopped by an event"},
    "tests/kubernetes/test_site.py": {"gpu_kubernetes_timeout=3": TIMEOUT},
    "tests/lab/test_clients.py": {"time.sleep(1)": AT_LEAST},
    "tests/lab/test_hosts.py": {"time.sleep(1)": AT_LEAST},
    "molecule/gpu_drain/tests/drained_host.py": {"time.sleep(1)": AT_LEAST},
    "tests/limiter/test_contexts.py": {"time.monotonic() + 1.5": AT_LEAST},
    "tests/limiter/test_waits.py": {"time.sleep(0.02)": "it is called again and again until the test ends it"},
    "tests/limiter/test_host_files.py": {"time.sleep(1.1)": AT_LEAST},
    "tests/limiter/test_report.py": {
        "time.sleep(1.2)": AT_LEAST,
        "time.sleep(0.3)": NOTHING,
        "time.monotonic() + 1.5": AT_LEAST,
    },
    "tests/limiter/test_agent_nvml.py": {
        "time.monotonic() + 2.5": "the test goes on for longer where the machine is late"
    },
    "tests/limiter/test_top.py": {"time.monotonic() + 1": "it is called in a loop with a limit"},
    "tests/integration/simulator/test_library_gpm.py": {"time.sleep(0.01)": AT_LEAST, "time.sleep(0.001)": AT_LEAST},
    "tests/integration/simulator/test_library_file.py": {"time.monotonic() + 0.5": "late threads start at once"},
    "tests/monitoring/test_hostile_exporter.py": {"gpu_monitoring_scrape_timeout='1s'": SCRAPE},
    "tests/unit/plugin_utils/audit/test_audit_asking.py": {"time.sleep(0.05)": SLOW},
    "tests/unit/module_utils/holders/test_mps_control.py": {"time.sleep(0.01)": SLOW},
    "tests/unit/plugin_utils/rightsize/test_rightsize_parts.py": {"'seconds': 5": "an option that is read, not a run"},
    "tests/unit/plugin_utils/audit/test_audit_report.py": {
        "timeout_seconds=5": "nothing listens at this address",
        "'timeout_seconds': '5'": "an option that is read, not a run",
    },
    "tests/unit/module_utils/processes/test_command.py": {"timeout_seconds=0.05": TIMEOUT},
    "tests/unit/module_utils/reclaim/test_idle_jupyter.py": {"ended.wait(0.1)": SERVER},
    "tests/unit/tests/test_host_state.py": {"seconds=0.1": TIMEOUT},
    "tests/unit/module_utils/processes/test_peer.py": {"seconds=1": TIMEOUT},
    "tests/unit/plugin_utils/rightsize/test_rightsize_rearrange.py": {
        "seconds=2": "a bound of the search: any answer holds, also none"
    },
    "molecule/gpu_drain/tests/hosts/test_kubernetes.py": {"gpu_drain_timeout=2": TIMEOUT},
    "molecule/gpu_drain/tests/hosts/test_role.py": {"gpu_drain_timeout=2": TIMEOUT},
    "molecule/gpu_slurm/tests/hosts/test_follow.py": {"gpu_drain_timeout=2": TIMEOUT},
    "molecule/mig/tests/runs.py": {"time.sleep(0.05)": "it is called in a loop with a limit"},
    "molecule/mig/tests/hosts/test_in_use.py": {"busy_timeout=2": TIMEOUT},
    "molecule/mig/tests/hosts/test_two_runs.py": {"lock_timeout=1": TIMEOUT},
    "molecule/monitoring/inventory/group_vars/gpu_monitoring.yml": {"gpu_monitoring_scrape_timeout: 2": SCRAPE},
    "molecule/audit/inventory/group_vars/gpu_monitoring.yml": {"gpu_monitoring_scrape_timeout: 2": SCRAPE},
    # This time is in the text of another program.
    "tests/unit/module_utils/processes/test_command_line.py": {
        "timeout 5": "a command line that is parsed and never run"
    },
}
#: Parameters, options and keys with these names are time limits.
LIMIT = re.compile(
    r"(?:^|_|-)(?:timeout|deadline|patience|grace|grace_period)(?:_s|_seconds)?$|^seconds$|^(?:timeout|wait)_seconds$"
)
#: For methods with these names, the first number is a time limit. For functions, it is the last number.
WAITS = {"wait", "join", "settimeout", "communicate", "Timer", "select"}
#: In these files, functions with such a name count something other than time.
OTHER_WAITS = {
    "tests/kubernetes/node_stand_in.py",
    "tests/kubernetes/test_made_up_backend.py",
    "tests/kubernetes/test_role.py",
    "tests/limiter/test_doubts.py",
}
OPTION = re.compile(r"^--[a-z-]*(?:timeout|grace|grace-period|patience)(?:=(\d+(?:\.\d+)?))?$")
SHELL = re.compile(r"\btimeout (?:-\S+ )*(\d+(?:\.\d+)?)(?=[ s])")
NUMBER = re.compile(r"^(\d+(?:\.\d+)?)(ms|s)?$")


def seconds_of(node: ast.AST) -> float | None:
    """Return the number in an expression, also if it is a text.

    Returns None if there is none.
    """
    value = node.value if isinstance(node, ast.Constant) else None
    found = NUMBER.match(value) if isinstance(value, str) else None
    if found:
        return float(found[1]) / (1000 if found[2] == "ms" else 1)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_short(seconds: float | None) -> bool:
    return seconds is not None and 0 < seconds < LEAST_SECONDS


def short_waits(source: str, waits: bool = True) -> Iterator[str]:
    """Yield the source text of each short limit, and of each sleep outside a loop.

    `waits` says whether methods are recognized by their name.
    """
    tree = ast.parse(source)
    looped = {id(node) for loop in ast.walk(tree) if isinstance(loop, (ast.For, ast.While)) for node in ast.walk(loop)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            numbers = [number for number in map(seconds_of, node.args) if number is not None]
            for keyword in node.keywords:
                if keyword.arg and LIMIT.search(keyword.arg) and is_short(seconds_of(keyword.value)):
                    yield "%s=%s" % (keyword.arg, ast.unparse(keyword.value))
            if name == "sleep" and id(node) not in looped and numbers and is_short(numbers[0]):
                yield "%s(%g)" % (ast.unparse(node.func), numbers[0])
            if waits and name in WAITS and numbers and is_short(numbers[-1]):
                yield "%s(%g)" % (ast.unparse(node.func), numbers[-1])
        if isinstance(node, (ast.Call, ast.List, ast.Tuple)):
            items = node.args if isinstance(node, ast.Call) else node.elts
            for option, value in zip(items, items[1:]):
                text = option.value if isinstance(option, ast.Constant) and isinstance(option.value, str) else ""
                if OPTION.match(text) and is_short(seconds_of(value)):
                    yield "%s, %s" % (ast.unparse(option), ast.unparse(value))
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                text = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
                if LIMIT.search(text) and is_short(seconds_of(value)):
                    yield "%r: %s" % (text, ast.unparse(value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and is_short(seconds_of(node.right)):
            left = ast.unparse(node.left)
            if left in ("time.monotonic()", "time.time()"):
                yield "%s + %s" % (left, ast.unparse(node.right))
        if isinstance(node, ast.Assign) and is_short(seconds_of(node.value)):
            for target in node.targets:
                if isinstance(target, ast.Name) and LIMIT.search(target.id.lower()) and "_POLL" not in target.id:
                    yield "%s = %s" % (target.id, ast.unparse(node.value))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            given = OPTION.match(node.value)
            if given and given[1] and is_short(float(given[1])):
                yield node.value
            for found in SHELL.finditer(node.value):
                if is_short(float(found[1])):
                    yield "timeout " + found[1]


def short_yaml_waits(data: object) -> Iterator[str]:
    """Yield the short limits in tasks and variables.

    These are keys such as `timeout: 5`, and retries for less than 10 s.
    """
    if isinstance(data, list):
        for item in data:
            yield from short_yaml_waits(item)
    if isinstance(data, dict):
        for key, value in data.items():
            if (
                isinstance(value, (int, float, str))
                and LIMIT.search(str(key))
                and is_short(seconds_of(ast.Constant(value)))
            ):
                yield "%s: %g" % (key, seconds_of(ast.Constant(value)))
            yield from short_yaml_waits(value)
        # By default, Ansible retries 3 times with a delay of 5 seconds.
        if "until" in data and is_short(float(data.get("retries", 3)) * float(data.get("delay", 5))):
            yield "retries: %s, delay: %s" % (data.get("retries", 3), data.get("delay", 5))
    if isinstance(data, str):
        for found in SHELL.finditer(data):
            if is_short(float(found[1])):
                yield "timeout " + found[1]


@functools.cache
def found() -> dict[str, set[str]]:
    """Return the short waits of all tests, by file."""
    waits: dict[str, set[str]] = {}
    for folder in ("tests", "molecule"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if name == "tests/unit/tests/test_short_waits.py" or name.startswith("tests/benchmark/bench_"):
                continue
            if path.suffix == ".py":
                waits[name] = set(short_waits(path.read_text(), name not in OTHER_WAITS))
            elif path.suffix in (".yml", ".yaml") and "/data/" not in name:
                for document in yaml.load_all(path.read_text(), LOADER):
                    waits.setdefault(name, set()).update(short_yaml_waits(document))
    return {name: texts for name, texts in waits.items() if texts}


@pytest.mark.slow
def test_a_test_waits_for_a_condition_with_a_generous_limit():
    new = [
        "%s: %s" % (name, text) for name, texts in found().items() for text in sorted(texts - KEPT.get(name, {}).keys())
    ]
    assert new == [], "give it %d s or more, or wait for a condition, or add the reason to KEPT" % LEAST_SECONDS


@pytest.mark.slow
def test_no_exception_is_out_of_date():
    waits = found()
    assert [(name, text) for name, texts in KEPT.items() for text in texts if text not in waits.get(name, ())] == []


def test_each_kind_of_short_wait_is_detected():
    source = """
run(lock_timeout=0.5, busy_timeout=0, timeout=30)
host("apply", "--busy-timeout", "0.5")
host("drain", "--grace-period=1")
event.wait(5)
process.wait(60)
time.sleep(0.3)
while not done():
    time.sleep(0.3)
deadline = time.monotonic() + 2
PATIENCE_SECONDS = 3
host.run("timeout 5 sh -c 'until true; do sleep 0.1; done'")
{"gpu_drain_timeout": 2, "gpu_layout_timeout": 20}
"""
    assert list(short_waits(source)) and set(short_waits(source)) == {
        "lock_timeout=0.5",
        "'--busy-timeout', '0.5'",
        "--grace-period=1",
        "event.wait(5)",
        "time.sleep(0.3)",
        "time.monotonic() + 2",
        "PATIENCE_SECONDS = 3",
        "timeout 5",
        "'gpu_drain_timeout': 2",
    }
    tasks = [
        {"command": "true", "until": "done", "retries": 5, "delay": 1},
        {"command": "true", "until": "done", "retries": 60, "delay": 1},
        {"wait_for": {"port": 1, "timeout": 5}},
        {"vars": {"scrape_timeout": "2s"}},
    ]
    assert list(short_yaml_waits(tasks)) == ["retries: 5, delay: 1", "timeout: 5", "scrape_timeout: 2"]
