# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module drain with a fault at each step.

molecule/gpu_drain uses real systemd and Slurm.
"""

from __future__ import annotations

import json

import pytest

from tests.integration.drain_host import BEFORE, REASON, DrainHost
from tests.thorough import sample

OFF = {
    "dcgm.service": "inactive",
    "exporter.service": "inactive",
    "api.service": "inactive",
    "api.socket": "inactive",
    "idle.service": "inactive",
}


@pytest.fixture
def there(tmp_path):
    return DrainHost(tmp_path)


def with_commands(folder):
    """Return the log file and the options for commands that write to it."""
    log = folder / "log"
    commands = {
        "commands_before": [f"echo before >> {log}"],
        "commands_after": [f"echo after >> {log}", ["/bin/sh", "-c", f"echo last >> {log}"]],
    }
    return log, commands


@pytest.mark.host_python
@pytest.mark.core
def test_clients_stop_in_order_and_start_again(there, tmp_path):
    log, commands = with_commands(tmp_path)
    done = there.drain(**commands)
    assert done["changed"] and done["drained"], done
    assert done["done"] == [
        f"run echo before >> {log}",
        "drain Slurm node gpu-a",
        "stop exporter.service",
        "stop dcgm.service",
        "stop api.socket",
        "stop api.service",
    ]
    assert done["absent"] == ["absent.service"]
    assert there.shown()["units"] == OFF
    assert (there.shown()["node"], there.shown()["reason"]) == ("IDLE+DRAIN", REASON)
    back = there.resume()
    assert back["done"] == [
        "start api.socket",
        "start api.service",
        "start dcgm.service",
        "start exporter.service",
        "resume Slurm node gpu-a",
        f"run echo after >> {log}",
        f"run /bin/sh -c echo last >> {log}",
    ]
    assert there.shown() == BEFORE
    assert not there.record.exists()
    assert log.read_text().split() == ["before", "after", "last"]


def test_drain_and_resume_are_idempotent(there, tmp_path):
    log, commands = with_commands(tmp_path)
    there.drain(**commands)
    again = there.drain(**commands)
    assert (again["changed"], again["done"], again["drained"]) == (False, [], True)
    assert log.read_text().split() == ["before"]
    there.resume()
    there.fault()
    nothing = there.resume()
    assert (nothing["changed"], nothing["done"]) == (False, [])
    # A repeated drain queries no service and no scheduler, so it is cheap.
    assert there.calls() == []


def test_units_wait_for_jobs(there):
    there.set(jobs=["5 alice RUNNING 1:00:00 train"])
    done = there.drain()
    assert not done["drained"]
    assert [job["id"] for job in done["waiting"]] == ["5"]
    assert there.shown()["units"] == BEFORE["units"]
    there.set(jobs=[])
    assert there.drain()["drained"]
    assert there.shown()["units"] == OFF


def calls_of(there, state):
    """Return how many calls the module makes for this state.

    Afterwards, the host is in this state.
    """
    there.fault()
    assert there.sweep(state) == ""
    return len(there.calls())


def test_fault_of_any_drain_call_restores_everything(there, tmp_path):
    log, commands = with_commands(tmp_path)
    calls = calls_of(there, "drained")
    there.sweep("resumed")
    for nth in sample(range(1, calls + 1), 7):
        log.write_text("")
        there.fault(nth)
        said = there.sweep("drained", **commands)
        call = there.calls()[nth - 1]
        if call[:3] == ["scontrol", "show", "slurmd"]:
            # If slurmd does not report its name, the module uses the host's own name.
            assert said == ""
            there.sweep("resumed")
            continue
        assert "rolled back" in said or "Nothing was drained" in said, (nth, call, said)
        assert there.shown() == BEFORE, (nth, call, said)
        assert not there.record.exists(), (nth, call, said)
        assert log.read_text().split() == ["before", "after", "last"], (nth, call)


def test_resume_restores_everything_after_a_kill_at_any_drain_call(there, tmp_path):
    log, commands = with_commands(tmp_path)
    calls = calls_of(there, "drained")
    there.sweep("resumed")
    for nth in sample(range(1, calls + 1), 7):
        log.write_text("")
        there.fault(nth, "kill")
        assert there.sweep("drained", **commands) is None
        there.fault()
        assert there.sweep("resumed") == "", nth
        assert there.shown() == BEFORE, nth
        assert not there.record.exists()
        assert log.read_text().split() == ["before", "after", "last"], nth


@pytest.mark.parametrize("kind", [pytest.param("fail", marks=pytest.mark.thorough), "kill"])
def test_next_resume_completes_after_a_fault_of_any_call(there, kind):
    calls_of(there, "drained")
    calls = calls_of(there, "resumed")
    for nth in sample(range(1, calls + 1), 7):
        there.fault()
        assert there.sweep("drained") == ""
        there.fault(nth, kind)
        said = there.sweep("resumed")
        if kind == "fail" and "reset-failed" in there.calls()[nth - 1]:
            # reset-failed may fail for a unit that never ran. When the unit starts later, this shows whether it works.
            assert said == "", (nth, said)
        else:
            assert said is None if kind == "kill" else "(by hand: " in said, (nth, said)
            assert there.record.exists()
        there.fault()
        assert there.sweep("resumed") == "", nth
        assert there.shown() == BEFORE, nth
        assert not there.record.exists(), nth


@pytest.mark.host_python
@pytest.mark.core
def test_next_drain_continues_after_a_kill(there):
    calls = calls_of(there, "drained")
    there.sweep("resumed")
    for nth in sample(range(1, calls + 1), 14):
        there.fault(nth, "kill")
        assert there.sweep("drained") is None
        there.fault()
        assert there.sweep("drained") == "", nth
        assert there.shown()["units"] == OFF
        there.sweep("resumed")
        assert there.shown() == BEFORE, nth


@pytest.mark.host_python
@pytest.mark.core
def test_simulated_kill_equals_a_kill_of_the_module(there):
    there.fault(9, "kill")
    assert there.drain() is None
    there.fault()
    assert there.resume()["changed"]
    assert there.shown() == BEFORE


@pytest.mark.host_python
@pytest.mark.core
def test_dry_run_predicts_and_calls_nothing_that_changes(there, tmp_path):
    log, commands = with_commands(tmp_path)
    there.set(jobs=["5 alice RUNNING 1:00:00 train"])
    dry = there.drain(check=True, **commands)
    assert len(dry["waiting"]) == 1
    assert there.shown() == {**BEFORE, "jobs": ["5 alice RUNNING 1:00:00 train"]}
    assert not there.state.exists()
    assert not log.exists()
    there.set(jobs=[])
    done = there.drain(**commands)
    assert dry["done"] == done["done"]
    assert dry["diff"] == done["diff"]
    dry = there.resume(check=True)
    assert there.shown()["units"] == OFF
    done = there.resume()
    assert dry["done"] == done["done"]
    assert dry["diff"] == done["diff"]


@pytest.mark.host_python
@pytest.mark.core
def test_only_failed_after_commands_are_retried(there, tmp_path):
    log = tmp_path / "log"
    there.drain(commands_after=[f"echo one >> {log}", f"test -e {tmp_path}/now", f"echo two >> {log}"])
    failed = there.resume()
    assert "it exited with status 1" in failed["msg"]
    # The clients run again. Only the commands that follow a drain are still pending.
    assert there.shown() == BEFORE
    (tmp_path / "now").touch()
    assert not there.resume().get("failed")
    assert log.read_text().split() == ["one", "two"]


@pytest.mark.host_python
@pytest.mark.core
def test_missing_program_is_named(there):
    assert "the command 'nosuchprogram -x'" in there.drain(commands_before=[["nosuchprogram", "-x"]])["msg"]
    assert there.shown() == BEFORE


def test_kubernetes_node_is_recorded_until_resumed(there, tmp_path):
    log, commands = with_commands(tmp_path)
    there.module("drained", kubernetes={"node": "n1", "cordoned_before": False}, **commands)
    assert log.read_text().split() == ["before"]
    # The node is cordoned now because of this drain. It was not cordoned before, and this state must be kept.
    there.module("drained", kubernetes={"node": "n1", "cordoned_before": True}, **commands)
    there.drain(**commands)
    back = there.resume()
    assert back["kubernetes"] == {"node": "n1", "cordoned_before": False}
    assert there.shown() == BEFORE
    # The commands after the drain wait until the module restores the node.
    assert log.read_text().split() == ["before"]
    assert there.resume()["kubernetes"] == {"node": "n1", "cordoned_before": False}
    assert there.resume(kubernetes_done=True)["kubernetes"] is None
    assert log.read_text().split() == ["before", "after", "last"]
    assert not there.record.exists()


def test_dry_run_predicts_the_kubernetes_node(there):
    node = {"node": "n1", "cordoned_before": False}
    assert there.module("drained", True, kubernetes=node)["done"] == ["cordon Kubernetes node n1"]
    there.module("drained", kubernetes=node)
    assert there.resume(check=True)["done"] == ["uncordon Kubernetes node n1"]
    there.resume(kubernetes_done=True)
    assert there.module("drained", True, kubernetes=dict(node, cordoned_before=True))["changed"] is False


@pytest.mark.parametrize(
    "content",
    ["", "[1]", '{"schema": 99}', '{"schema": 1}', json.dumps({"schema": 1, "prepared": True, "commands_after": "x"})],
)
def test_unreadable_record_stops_drain_and_resume_and_is_kept(there, content):
    there.state.mkdir()
    there.record.write_text(content)
    for result in (there.drain(), there.resume()):
        assert result["failed"]
        assert str(there.record) in result["msg"]
        assert "restore it by hand and remove" in result["msg"]
    assert there.record.read_text() == content
    assert there.shown() == BEFORE


def test_unrecordable_units_are_not_stopped(there):
    there.state.mkdir()
    # Create a folder at the path of the first file that the module writes. Not even root can write a file there.
    (there.state / "drain.json.new").mkdir()
    result = there.drain()
    assert "drain.json" in result["msg"]
    assert "Nothing was drained." in result["msg"]
    assert there.shown() == BEFORE


def test_record_is_readable_for_root_only(there):
    there.drain(commands_after=["notify --token hunter2"])
    assert there.record.stat().st_mode & 0o077 == 0
