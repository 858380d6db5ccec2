# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions of a drain: dependent units, Slurm nodes, and pods to wait for."""

from __future__ import annotations

import subprocess
import types

import pytest

from ansible_collections.openfleet.gpu.plugins.filter.awaited_pods import awaited_pods
from ansible_collections.openfleet.gpu.plugins.module_utils.drain import host as drain
from ansible_collections.openfleet.gpu.plugins.module_utils.drain import slurm as drain_slurm
from ansible_collections.openfleet.gpu.plugins.module_utils.drain.record import DrainError, Record
from ansible_collections.openfleet.gpu.plugins.module_utils.drain.slurm import Slurm, check_reason, parse_node
from ansible_collections.openfleet.gpu.plugins.module_utils.drain.units import (
    Unit,
    closure,
    starting_order,
    unit_name,
)


# --- units ----------------------------------------------------------------------------------------
def looking_at(*units):
    there = {unit.name: unit for unit in units}
    return lambda names: [there[name] for name in names]


def running(name, **relations):
    return Unit(name, "loaded", "active", **relations)


def test_dependents_stop_before_a_unit():
    look = looking_at(
        running("a.service", dependents=("b.service", "c.service")),
        running("b.service", dependents=("d.service",)),
        running("c.service"),
        running("d.service"),
    )
    asked, found = closure("a.service", look)
    assert asked.name == "a.service"
    names = [unit.name for unit in found]
    assert sorted(names) == ["a.service", "b.service", "c.service", "d.service"]
    assert names.index("d.service") < names.index("b.service") < names.index("a.service")
    assert names[-1] == "a.service"


def test_triggers_of_a_unit_stop_first():
    look = looking_at(
        running("a.service", triggered_by=("a.socket",), dependents=("b.service",)),
        # A normal cycle: the socket belongs to the service, which requires the socket.
        running("a.socket", dependents=("a.service",)),
        running("b.service", triggered_by=("b.timer",)),
        running("b.timer"),
    )
    _asked, found = closure("a.service", look)
    assert {unit.name for unit in found[:2]} == {"a.socket", "b.timer"}
    assert [unit.name for unit in found[2:]] == ["b.service", "a.service"]


def test_a_socket_starts_before_its_service():
    assert starting_order(["a.socket", "a.service", "b.timer", "b.service"]) == [
        "a.socket",
        "b.service",
        "b.timer",
        "a.service",
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nvidia-dcgm", "nvidia-dcgm.service"),
        ("nvidia-dcgm.service", "nvidia-dcgm.service"),
        ("inference@a", "inference@a.service"),
        ("k3s.v2", "k3s.v2.service"),
        ("x.timer", "x.timer"),
    ],
)
def test_names_are_read_like_systemctl(written, meant):
    assert unit_name(written) == meant


@pytest.mark.parametrize(
    "name", ["", "a b", "inference@.service", "lab-*", "gpu.target", "user.slice", "-.mount", None]
)
def test_invalid_unit_names_are_refused(name):
    with pytest.raises(DrainError):
        unit_name(name)


@pytest.mark.parametrize("state", ["active", "reloading", "activating", "refreshing"])
def test_running_or_starting_unit_is_restored(state):
    assert Unit("a.service", "loaded", state).runs


@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating", "maintenance"])
def test_unit_stopped_by_others_is_not_restored(state):
    assert not Unit("a.service", "loaded", state).runs


# --- Slurm ----------------------------------------------------------------------------------------
RECORD = "NodeName=gpu-a Arch=x86_64 State=%s ThreadsPerCore=1 Partitions=main%s"


@pytest.mark.parametrize(
    ("state", "out", "lost"),
    [
        ("IDLE", False, False),
        ("MIXED", False, False),
        ("ALLOCATED+DRAIN", True, False),
        ("IDLE+COMPLETING+DRAIN", True, False),
        ("IDLE+FAIL+NOT_RESPONDING", True, True),
        ("DOWN+DRAIN", True, True),
        ("UNKNOWN+DRAIN", True, True),
        ("UNKNOWN+DRAIN+INVALID_REG", True, False),
        ("DOWN+DRAIN+INVALID_REG", True, True),
        # The next rows have the format of Slurm 20.11 and earlier.
        ("IDLE*", False, True),
        ("DOWN*+DRAIN", True, True),
        ("IDLE~", False, False),
        ("RESERVED$", False, False),
    ],
)
def test_states(state, out, lost):
    node = parse_node(RECORD % (state, ""))
    assert (node.is_out, node.is_lost) == (out, lost)
    assert node.state == state


@pytest.mark.parametrize(
    ("written", "reason", "user"),
    [
        (" Reason=bad fan [root@2026-11-21T03:27:11]", "bad fan", "root"),
        (" Reason=State=RESUME nodename=foo [root@2026-11-21T03:27:49]", "State=RESUME nodename=foo", "root"),
        (" Reason=a [root@2026-11-21T03:27:49]\n        b", "a", "root"),
        (" Reason=ümläut x [slurm@2026-11-21T03:27:49] Comment=x", "ümläut x", "slurm"),
        (
            " Reason=gres/gpu count reported lower than configured (0 < 4) [slurm@2026-11-21T03:25:31]",
            "gres/gpu count reported lower than configured (0 < 4)",
            "slurm",
        ),
        ("", "", ""),
    ],
)
def test_reasons(written, reason, user):
    node = parse_node(RECORD % ("IDLE+DRAIN", written))
    assert (node.reason, node.set_by) == (reason, user)


@pytest.mark.parametrize("reason", ["", "  ", 'the "fan"', "a\nb", "a\tb", "x [y]"])
def test_reasons_that_slurm_would_change_are_refused(reason):
    with pytest.raises(DrainError, match="gpu_drain_slurm_reason"):
        check_reason(reason)


def test_reason_is_compared_as_slurm_stores_it():
    assert check_reason(" driver upgrade: x=1 ") == "driver upgrade: x=1"


class Answers:
    """Replace Slurm's tools with prepared answers."""

    def __init__(self, returncode=0, stdout="", stderr=""):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr

    def __call__(self, command):
        return self


def squeue(names):
    """Answer like squeue, with all jobs but no names, or with the name of one job."""

    def answer(command):
        if "--jobs" in command:
            said = names[command[command.index("--jobs") + 1]]
        else:
            said = "5 RUNNING 1:20:03 alice\n6 SUSPENDED UNLIMITED CORP\\Bob B\n"
        return subprocess.CompletedProcess(command, 0, said, "")

    return answer


def test_jobs_are_named_with_user_and_time():
    jobs = Slurm(squeue({"5": "train it | now\n", "6": "\n"})).jobs("gpu-a")
    assert [job["who"] for job in jobs] == [
        "Slurm job 5 (train it | now) of user alice, running, 1:20:03 left",
        "Slurm job 6 () of user CORP\\Bob B, suspended, without a time limit",
    ]
    assert (jobs[0]["id"], jobs[0]["name"], jobs[0]["user"]) == ("5", "train it | now", "alice")


def test_job_name_cannot_pose_as_another_job_and_is_one_line():
    names = {"5": "a\n99 RUNNING 1:00 root\n", "6": "\x1b[2J\u2028b\x85\n"}
    jobs = Slurm(squeue(names)).jobs("gpu-a")
    assert [(job["id"], job["name"]) for job in jobs] == [("5", "a"), ("6", "\\x1b[2J\\u2028b\\x85")]


def test_unknown_node_names_the_variable_to_set():
    with pytest.raises(DrainError, match="gpu_drain_slurm_node"):
        Slurm(Answers(1, stdout="Node gpu-x not found\n")).node("gpu-x")


def test_missing_slurm_tools_are_named():
    def absent(command):
        raise FileNotFoundError(2, "No such file or directory", command[0])

    with pytest.raises(DrainError, match="scontrol is not installed"):
        Slurm(absent).node("gpu-a")


# --- Kubernetes -----------------------------------------------------------------------------------
def pod(name, phase="Running", owner=None, **annotations):
    metadata = {"namespace": "ml", "name": name, "annotations": annotations}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "x"}]
    return {"metadata": metadata, "status": {"phase": phase}}


def test_staying_or_ended_pods_are_not_awaited():
    pods = [
        pod("job", owner="Job"),
        pod("bare"),
        pod("plugin", owner="DaemonSet"),
        pod("static", **{"kubernetes.io/config.mirror": "1"}),
        pod("done", phase="Succeeded", owner="Job"),
        {"metadata": {"namespace": "ml", "name": "new"}},
    ]
    assert awaited_pods(pods) == ["ml/job", "ml/bare", "ml/new"]


def test_daemonset_pods_removed_by_a_paused_label_are_awaited():
    labels = {"a/deploy": "paused", "b/deploy": "paused"}
    selectors = {"plugin": {"a/deploy": "true"}, "tool": {"a/deploy": "paused"}, "other": {"c": "true"}, "any": None}
    pods = [{**pod(name, owner="DaemonSet"), "spec": {"nodeSelector": found}} for name, found in selectors.items()]
    pods.append(pod("job", owner="Job"))
    assert awaited_pods(pods, labels=labels) == ["ml/plugin", "ml/job"]
    assert awaited_pods(pods, labels=labels, evicted=False) == ["ml/plugin"]
    assert awaited_pods(pods, evicted=False) == []


@pytest.mark.parametrize("name", ["--help", "gpu a;x", "State=DOWN", "a,b", "gpu-[1-9]", "ALL=", "x" * 256])
def test_node_name_from_slurmd_is_validated(name):
    """Refuse forged names, which could make root's scontrol change other nodes.

    A forged name could also add an option.
    """
    said = Answers(stdout="Hostname                 = %s\n" % name)
    if " " in name:
        assert Slurm(said).name_from_slurmd() == "gpu"
        return
    with pytest.raises(DrainError, match="is not a valid name of a Slurm node"):
        Slurm(said).name_from_slurmd()


@pytest.mark.parametrize(("of", "own"), [("gpu-a", True), ("gpu-a.example.org", True), ("gpu-b", False)])
def test_node_of_another_host_is_not_drained(tmp_path, monkeypatch, of, own):
    monkeypatch.setattr(drain.os, "uname", lambda: types.SimpleNamespace(nodename="gpu-a.example.org"))

    def answer(command):
        if command[1:] == ["show", "slurmd"]:
            return Answers(stdout="Hostname = node7\n")
        return Answers(stdout="NodeName=node7 Arch=x86_64 NodeAddr=%s NodeHostName=%s State=IDLE\n" % (of, of))

    taking = drain._Drainer(Record.load(str(tmp_path)), Slurm(answer), dry=True)
    if own:
        assert taking.own_node() == "node7"
        return
    with pytest.raises(DrainError, match=r"this node belongs to the host gpu-b, but this host is gpu-a\.example\.org"):
        taking.own_node()


def test_names_of_very_many_jobs_are_queried_in_part(monkeypatch):
    """Check that every job is returned, even if its name was not queried."""
    monkeypatch.setattr(drain_slurm, "_NAMES_SECONDS", -1)
    found = Slurm(squeue({})).jobs("gpu-a")
    assert [(job["id"], job["name"], job["user"]) for job in found] == [("5", "", "alice"), ("6", "", "CORP\\Bob B")]


def test_texts_of_slurm_are_printable_and_short_in_messages():
    """Limit texts that users choose.

    Users who may update nodes choose the reason, and any user can choose a job name.
    """
    hostile = "x\r\x1b[2J\u2028" + "y" * 5000
    node = parse_node("NodeName=gpu-a State=DOWN+DRAIN Reason=%s [mallory@2026-01-01T00:00:00]" % hostile)
    assert node.described().isprintable() and len(node.described()) < 500
    (job, *_others) = Slurm(squeue({"5": hostile, "6": "x"})).jobs("gpu-a")
    assert job["who"].isprintable() and len(job["who"]) < 500 and len(job["name"]) < 300
