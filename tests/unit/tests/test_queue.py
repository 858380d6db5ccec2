# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the queue of `make test`: order, dependencies, failures, and images."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

from tests.integration.patience import wait_until

ROOT = Path(__file__).parents[3]
#: This script replaces make. It logs its target, waits while a file wait-TARGET exists, and fails if a file fail-TARGET
#: exists.
MAKE = """#!/bin/sh
echo "begin $2" >>log
echo "output of $2"
[ -e "wait-$2" ] && while [ -e "wait-$2" ]; do sleep 0.01; done
echo "end $2" >>log
[ ! -e "fail-$2" ]
"""


@pytest.fixture()
def queue(tmp_path):
    """Return a function that runs the queue in a new folder.

    The function returns the ended process, and the starts and ends of targets in order.
    """
    (tmp_path / "make").write_text(MAKE)
    (tmp_path / "make").chmod(0o755)
    environment = {**os.environ, "PATH": "%s:%s" % (tmp_path, os.environ["PATH"])}

    def run(*arguments, failing=()):
        for target in failing:
            (tmp_path / ("fail-" + target)).touch()
        command = [sys.executable, str(ROOT / "tests" / "queue"), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        log = tmp_path / "log"
        return done, log.read_text().split("\n")[:-1] if log.exists() else []

    return run


def test_targets_start_in_order_one_at_a_time(queue):
    done, log = queue("1", "a", "b", "c")
    assert done.returncode == 0
    assert log == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]
    assert done.stdout == "output of a\noutput of b\noutput of c\n"


def test_ready_targets_start_before_waiting_ones_in_list_order(queue):
    _done, log = queue("1", "long:image", "short", "image", "last:image,short")
    assert [line for line in log if line.startswith("begin")] == [
        "begin short",
        "begin image",
        "begin long",
        "begin last",
    ]


def test_concurrent_targets_are_limited_by_jobs(queue, tmp_path):
    for target in ("a", "b"):
        (tmp_path / ("wait-" + target)).touch()
    # The third target lets the other two end, so all three must run at the same time.
    (tmp_path / "make").write_text(MAKE + '\n[ "$2" != c ] || rm wait-a wait-b\n')
    done, log = queue("3", "a", "b", "c", "d")
    assert done.returncode == 0 and len(log) == 8
    # The fourth target starts as soon as one of the others has ended.
    assert log.index("begin d") > min(log.index("end " + target) for target in "abc")


def test_dependents_of_a_failed_target_are_skipped(queue):
    done, log = queue("2", "image", "scenario:image", "after:scenario", "unit", failing=["image"])
    assert done.returncode == 1
    assert sorted(log) == ["begin image", "begin unit", "end image", "end unit"]
    assert "queue: scenario is left out: image failed" in done.stdout


def test_hanging_target_fails_and_others_run(queue, tmp_path):
    (tmp_path / "wait-stuck").touch()
    # If a target ends, the processes that it started end too.
    (tmp_path / "make").write_text(MAKE.replace("#!/bin/sh", "#!/bin/sh\necho $$ >pid-$2"))
    done, log = queue("--limit", "3", "1", "stuck", "other", "after:stuck")
    assert done.returncode == 1
    assert log == ["begin stuck", "begin other", "end other"]
    assert "output of stuck\nqueue: stuck was ended: it ran for longer than 3 s\n" in done.stdout
    assert "queue: after is left out: stuck failed" in done.stdout
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid-stuck").read_text()), 0)


def test_timed_out_target_is_cleaned_up(queue, tmp_path):
    (tmp_path / "wait-stuck").touch()
    done, log = queue("--limit", "3", "--cleanup", "sh -c 'echo clean $1 >>log' sh", "1", "stuck", "other")
    assert done.returncode == 1
    assert log == ["begin stuck", "clean stuck", "begin other", "end other"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_queue_ends_its_targets_and_cleans_up(tmp_path, number):
    process, pids = _started(tmp_path)
    process.send_signal(number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "queue: interrupted by %s" % signal.Signals(number).name in output
    _assert_cleaned(tmp_path, pids)


def test_queue_without_its_make_ends_its_targets_and_cleans_up(tmp_path):
    process, pids = _started(tmp_path, "sh", "-c", '"$@"; exit $?', "sh")
    process.kill()
    process.wait(60)
    wait_until(lambda: len(_cleaned(tmp_path)) == 2, "both are cleaned up after")
    _assert_cleaned(tmp_path, pids)


def _started(folder, *before):
    """Start a queue of two targets that do not end.

    Waits until both targets run. Returns the process of the queue, and the pids of the targets.
    """
    (folder / "make").write_text(MAKE.replace("#!/bin/sh", "#!/bin/sh\necho $$ >pid-$2"))
    (folder / "make").chmod(0o755)
    for target in ("a", "b"):
        (folder / ("wait-" + target)).touch()
    command = [*before, sys.executable, str(ROOT / "tests" / "queue"), "--cleanup", "sh -c 'echo clean $1 >>log' sh"]
    environment = {**os.environ, "PATH": "%s:%s" % (folder, os.environ["PATH"])}
    process = subprocess.Popen(
        [*command, "2", "a", "b"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = folder / "log"
    wait_until(lambda: log.exists() and {"begin a", "begin b"} <= set(log.read_text().splitlines()), "both run")
    return process, [int((folder / ("pid-" + target)).read_text()) for target in ("a", "b")]


def _cleaned(folder):
    return sorted(line for line in (folder / "log").read_text().splitlines() if line.startswith("clean"))


def _assert_cleaned(folder, pids):
    assert _cleaned(folder) == ["clean a", "clean b"]
    # /proc has a killed process until its parent, or init, has read its status.
    wait_until(lambda: not any(Path("/proc/%d" % pid).exists() for pid in pids), "the targets end")


def test_running_lab_hosts_are_limited(queue, tmp_path):
    # In this script, a target with hosts fails if another target with hosts runs at the same time.
    (tmp_path / "make").write_text(
        MAKE
        + "\ncase $2 in lab*) [ ! -e busy ] || touch fail-$2; touch busy; sleep 0.2; rm -f busy; [ ! -e fail-$2 ];; esac\n"
    )
    done, log = queue("--room", "5", "4", "lab-a@3", "lab-b@3", "lab-c@8", "unit")
    assert done.returncode == 0, log
    # Targets without hosts need not wait.
    assert log.index("begin unit") < log.index("begin lab-b")


def test_leg_counts_the_hosts_of_its_inventory():
    makefile = (ROOT / "Makefile").read_text()
    counted = dict(re.findall(r"^hosts_([\w-]+) := (\d+)$", makefile, re.MULTILINE))
    inventories = {path.parents[1].name: path.parent for path in ROOT.glob("molecule/*/inventory/hosts.yml")}
    inventories.update(
        default=ROOT / "inventories" / "simulated",
        kubernetes=ROOT / "tests" / "kubernetes" / "inventory",
        # This is the example in the README.
        release=ROOT / "inventories" / "minimal",
    )
    for leg, folder in inventories.items():
        hosts = InventoryManager(DataLoader(), [str(folder)]).get_hosts("gpu_hosts,gpu_monitoring")
        assert counted.pop(leg) == str(len(hosts)), leg
    # The small benchmark uses one host of four. Debian 13 runs its scenarios one after the other.
    assert counted == {"figures": "1", "trixie": "4"}


def test_help_describes_each_leg():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = re.findall(r"^  ([\w-]+) +\S", shown.partition("\nLegs")[2], re.MULTILINE)
    legs = re.findall(
        r"^legs \+?= ?((?:.*\\\n)*.*)|^legs :=((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    names = " ".join("".join(each) for each in legs).replace("\\", "").split()
    assert sorted(described) == sorted(names) and len(names) > 20
    # Names that differ only by an s at the end are easy to confuse.
    assert not {name + "s" for name in names} & set(names)


def test_unknown_and_circular_needs_are_refused(queue):
    done, _log = queue("2", "a:b")
    assert done.returncode == 1 and "not in the list: b" in done.stderr
    done, _log = queue("2", "a:b", "b:a")
    assert done.returncode == 1 and "a b wait for each other" in done.stderr


#: A choice of the Makefile between the thorough run and `make test`.
CHOICE = re.compile(r"\$\(if \$\(OPENFLEET_THOROUGH\),([^,()]*),([^()]*)\)")


@pytest.mark.parametrize("is_thorough", [False, True])
def test_scenario_needs_the_images_of_its_hosts(is_thorough):
    makefile = CHOICE.sub(r"\1" if is_thorough else r"\2", (ROOT / "Makefile").read_text())
    limits = dict(re.findall(r"^leg-(\w+): export OPENFLEET_LIMIT := (\S+)$", makefile, re.MULTILINE))
    assert "nvidia_driver" in limits
    wanted = {}
    for path in ROOT.glob("molecule/*/inventory"):
        scenario, loader = path.parent.name, DataLoader()
        inventory = InventoryManager(loader, sources=[str(path)])
        values = VariableManager(loader, inventory)
        for host in inventory.get_hosts(limits.get(scenario, "all")):
            # A scenario that composes the name of a variant also builds this variant itself.
            variant = str(values.get_vars(host=host).get("lab_variant", ""))
            if re.fullmatch(r"\w+", variant):
                wanted.setdefault(scenario, set()).add(variant)
    assert {"vgpu", "sharing", "gpu_drain", "monitoring", "audit"} <= set(wanted)
    assert ("nvidia_driver" in wanted) == is_thorough
    for scenario, variants in wanted.items():
        for variant in variants:
            assert re.search(r"^needs_%s := image-%s( |$)" % (scenario, variant), makefile, re.MULTILINE), scenario
