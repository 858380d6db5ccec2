# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lease quotas of GPUs to jobs of a real Slurm.

Owners of jobs attack the leases. The role configures Slurm. The tests add the lines of slurm.conf that the role only prints.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex

import pytest
from slurm_host import INVENTORY, JOB_SUBMIT, NODE, ROLE, SHOWN, follow

from tests.lab.role_plays import run_role
from tests.thorough import THOROUGH

pytestmark = pytest.mark.thorough

PROGRAM = "/usr/lib/openfleet-gpu/slurm/job-lease"
LINES = {"Prolog": PROGRAM, "Epilog": PROGRAM, "TaskProlog": "/usr/lib/openfleet-gpu/slurm/task-prolog"}
UNIT = {"memory": "8GiB", "sm_percent": 10}
LAYOUT = [
    {"gpus": [0, 1], "sharing": "shared"},
    {
        "gpus": [2, 3],
        "sharing": "vgpu",
        "vgpu": {"policy": "colocate", "provider": "preload"},
        "leases": {"by": "slurm", "unit": UNIT, "most": {"sm_percent": 50}, "online": ["urgent"]},
    },
]
PLAIN = [{"gpus": [0, 1, 2, 3], "sharing": "shared"}]
STEPS = (("vgpu_limiter", "main"), ("gpu_slurm", "prepare"), ("gpu_layout", "main"), ("gpu_slurm", "apply"))
#: Nine units of 8 GiB fit on each of the two GPUs. While other jobs use 14 - 5 units, a job with up to five units
#: always fits.
UNITS, MOST = 14, 5
#: The two CPUs of the node have room for eight jobs (OverSubscribe=FORCE:4).
MOST_JOBS = 6
USERS = ("alice", "bob")
SERVICE = "gpu-layout-lease.service gpu-layout-lease.socket"
#: Kills the main process of a unit, and starts the unit again.
KILL = (
    "pid=$(systemctl show --property=MainPID --value {unit}); [ $pid = 0 ] || kill -KILL $pid; systemctl restart {unit}"
)
#: Daemons of the node that serve jobs with leases.
DAEMONS = ("slurmd", "gpu-layout-lease")
#: Each started job writes a file with its id into this folder.
STARTED = "/tmp/started-jobs"
#: A command that starts requeued jobs now. Slurm itself would start them two minutes later.
NO_DELAY = (
    "squeue --noheader --states=PENDING --format '%A %r' | grep BeginTime | cut -d' ' -f1 | "
    "xargs --no-run-if-empty -I JOB scontrol update JobId=JOB StartTime=now"
)
NODE_STATE = f"sinfo --noheader --nodes {NODE} --format %T"


@pytest.fixture(scope="module")
def leased(host):
    """Apply the layout with the roles, and set Prolog, Epilog and TaskProlog."""
    version = host.ask("sinfo --version")
    if version.startswith("slurm 22."):
        pytest.skip("jobs have no lease until slurmd restarts: %s" % version.strip())
    for name in LINES:
        host.ask(f"sed -i '/^{name}=/d' /etc/slurm/slurm.conf")
    host.reset(PLAIN)
    host.ask("sed -i 's/^GresTypes=.*/GresTypes=gpu,quota/' /etc/slurm/slurm.conf; systemctl restart slurmctld")
    host.wait_until("scontrol ping >/dev/null")
    for user in USERS:
        host.ask(f"id {user} >/dev/null 2>&1 || useradd --create-home {user}")
    [done] = run_role(
        INVENTORY, "gpu_slurm", "one", [follow(LAYOUT, steps=STEPS, then=SHOWN, vgpu_limiter_source="controller")]
    )
    assert f"Gres=gpu:h100:2,quota:{UNITS}" in done.seen, done.seen
    assert any("add Prolog=" in text and PROGRAM in text for text in done.said), done.said
    for name, program in LINES.items():
        host.ask(f"sed -i '/^{name}=/d' /etc/slurm/slurm.conf; sed -i '1i {name}={program}' /etc/slurm/slurm.conf")
    host.ask("scontrol reconfigure")
    host.wait_until(f"scontrol show config | grep -q '^Prolog.*= {PROGRAM}$'")
    host.in_service()
    yield host
    host.ask("squeue --noheader --format %A | xargs --no-run-if-empty scancel")
    for name in LINES:
        host.ask(f"sed -i '/^{name}=/d' /etc/slurm/slurm.conf")
    host.ask("sed -i 's/^GresTypes=.*/GresTypes=gpu/' /etc/slurm/slurm.conf")
    host.reset(PLAIN)


@pytest.fixture
def cluster(leased):
    """Return the host.

    After each test, cancel all jobs. Then check that no job and no lease remains, and that the node accepts jobs.
    """
    yield leased
    leased.ask(f"systemctl start {SERVICE.split()[1]}; squeue --noheader --format %A | xargs --no-run-if-empty scancel")
    leased.wait_until('[ -z "$(squeue --noheader)" ]')
    leased.wait_until("gpu-layout lease list --json | grep -q '\"leases\": \\[\\]'")
    assert tenants(leased) == [], leased.ask("journalctl -u gpu-layout-lease -n 20 --no-pager")
    # sinfo can show the state of an ended job for minutes.
    leased.wait_until(f"scontrol -o show node {NODE} | grep -q ' State=IDLE '")
    assert leased.ask("ls /run/openfleet-gpu-jobs 2>/dev/null || true") == ""


def tenants(host):
    return host.ask("vgpu-run --list | grep -o '^lease-[0-9]*' || true").split()


def leases(host):
    """Return the account and the size of each lease."""
    rows = json.loads(host.ask("gpu-layout lease list --json"))["leases"]
    return sorted((row["account"], row["size"]) for row in rows)


def srun(host, user, options, command):
    """Run a job as a user. Returns its status and output."""
    line = f"cd /; timeout 100 srun --quiet {options} sh -c {shlex.quote(command)} </dev/null 2>&1"
    done = host.host.run(f"runuser -u {user} -- sh -c {shlex.quote(line)}")
    return done.rc, done.stdout.strip()


def submit(host, user, units, command="sleep 1d", options=""):
    """Submit a batch job as a user, and return its id."""
    line = (
        f"sbatch --parsable --chdir=/ --output=/dev/null {options} --gres=quota:{units} --wrap={shlex.quote(command)}"
    )
    return host.ask(f"runuser -u {user} -- {line}").strip()


def running(host, job):
    host.wait_until(f"scontrol show job {job} | grep -q JobState=RUNNING && [ -e /run/openfleet-gpu-jobs/{job} ]")
    host.wait_until(f"gpu-layout lease list --json | grep -q '/{job}\"'")


def test_job_has_its_quota_while_it_runs(cluster):
    status, text = srun(
        cluster,
        "alice",
        "--gres=quota:3",
        'echo $CUDA_VISIBLE_DEVICES $OPENFLEET_VGPU; cat "/etc/openfleet-gpu/vgpu/$OPENFLEET_VGPU/quota"; '
        "gpu-layout lease list --json",
    )
    assert status == 0, text
    # srun may print messages first.
    line = re.search(r"(?m)^(GPU-\S+) (\S+)$", text)
    assert line, text
    (uuid, tenant), quota, listed = line.groups(), text, text.split("\n")[-1]
    assert uuid in {gpu["uuid"] for gpu in cluster.gpus()["gpus"][2:]}
    assert f"gpu {uuid} memory {24 << 30} sm 30 " in quota and tenant.startswith("lease-")
    [row] = json.loads(listed)["leases"]
    assert row["account"].startswith("job:alice/") and row["size"] == "24GiB and 30 %" and row["ends"] is None


def test_job_without_units_gets_no_lease(cluster):
    status, text = srun(cluster, "alice", "", "echo [$OPENFLEET_LEASE]")
    assert (status, text) == (0, "[]") and leases(cluster) == []
    status, text = srun(cluster, "alice", "--gres=gpu:h100:1", "echo $CUDA_VISIBLE_DEVICES")
    assert status == 0 and text in {gpu["uuid"] for gpu in cluster.gpus()["gpus"][:2]}


def test_slurm_starts_jobs_up_to_its_units_and_all_have_leases(cluster):
    jobs = [submit(cluster, "alice", units) for units in (4, 5, 5)]
    for job in jobs:
        running(cluster, job)
    waiting = submit(cluster, "bob", 1)
    cluster.wait_until(f"squeue --noheader --jobs {waiting} --format %r | grep -q Resources")
    assert [size for _account, size in leases(cluster)].count("40GiB and 50 %") == 2
    cluster.ask(f"scancel {jobs[0]}")
    running(cluster, waiting)


def test_refused_job_is_requeued_and_starts_later(cluster):
    cluster.ask(f"systemctl stop {SERVICE}")
    job = submit(cluster, "alice", 2)
    # Slurm starts a requeued job two minutes later.
    cluster.wait_until(f"squeue --noheader --jobs {job} --format %r | grep -q BeginTime")
    assert not re.search("drain|down|fail", cluster.ask(NODE_STATE))
    assert "openfleet-gpu: this host: it has no leases" in cluster.ask(f"scontrol show job {job}")
    cluster.ask(f"systemctl start gpu-layout-lease.socket; scontrol update JobId={job} StartTime=now")
    running(cluster, job)


def test_job_that_never_fits_is_held_and_the_node_continues(cluster):
    job = submit(cluster, "alice", MOST + 1)
    cluster.wait_until(f"scontrol show job {job} | grep -q 'JobState=PENDING Reason=[^ ]*[Hh]eld'")
    assert "6 units are more than the limit" in cluster.ask(f"scontrol show job {job}")
    status, text = srun(cluster, "bob", f"--gres=quota:{MOST}", "echo $OPENFLEET_LEASE")
    assert status == 0 and text.isdigit()
    # Slurm cannot requeue a job of srun.
    _status, text = srun(cluster, "bob", f"--gres=quota:{MOST + 1}", "echo started")
    assert "started" not in text


def test_leases_outlive_restarts(cluster):
    job = submit(cluster, "alice", 4)
    running(cluster, job)
    before = leases(cluster)
    # A killed slurmctld can forget the last seconds, and would then start the job again.
    cluster.ask("systemctl restart slurmctld")
    for unit in ("slurmd", "gpu-layout-lease"):
        cluster.ask(KILL.format(unit=unit))
    cluster.in_service()
    assert leases(cluster) == before
    cluster.ask(f"scancel {job}")
    cluster.wait_until("gpu-layout lease list --json | grep -q '\"leases\": \\[\\]'")


JOB_SUBMIT_QUOTAS = """
local quotas = dofile("/etc/slurm/admit_quotas.lua")
function slurm_job_submit(job_desc, part_list, submit_uid)
   if quotas.refused(job_desc, 5) then return slurm.ERROR end
   return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   if quotas.refused(job_desc, 5) then return slurm.ERROR end
   return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture
def rule(cluster):
    """Return the host while slurmctld uses the rule of admit_quotas.lua."""
    text = (ROLE / "files" / "admit_quotas.lua").read_text(encoding="utf-8")
    for file, content in (("admit_quotas.lua", text), ("job_submit.lua", JOB_SUBMIT_QUOTAS)):
        cluster.ask(f"printf %s {shlex.quote(content)} > /etc/slurm/{file}; chmod 644 /etc/slurm/{file}")
    cluster.require_types()
    yield cluster
    cluster.ask(f"printf %s {shlex.quote(JOB_SUBMIT)} > /etc/slurm/job_submit.lua")
    cluster.require_types(False)


@pytest.mark.parametrize(
    ("request_", "admitted"),
    [
        ("--gres=quota:5", True),
        ("--gres=quota", True),
        ("--gres=gpu:h100:2", True),
        ("--gres=quota:6", False),
        ("--gres=quota:2K", False),
        ("--gres=quota:3,quota:6", False),
        ("--gres=quota:1,gpu:h100:1", False),
    ],
)
def test_rule_admits_only_requests_that_fit(rule, request_, admitted):
    done = rule.host.run(f"sbatch --test-only --chdir=/ {request_} --wrap true 2>&1")
    assert (done.rc == 0) == admitted, done.stdout


def test_partition_decides_which_job_is_online(cluster):
    show = "grep ^priority /etc/openfleet-gpu/vgpu/$OPENFLEET_VGPU/quota"
    cluster.ask("scontrol create PartitionName=urgent Nodes=ALL OverSubscribe=FORCE:4")
    try:
        # The user can change the environment of the job, but the Prolog has its own.
        forged = "--export=ALL,SLURM_JOB_PARTITION=urgent"
        assert srun(cluster, "alice", "--gres=quota:1 --partition=urgent", show) == (0, "priority 0")
        assert srun(cluster, "alice", f"--gres=quota:1 {forged}", show) == (0, "priority 1")
    finally:
        cluster.ask("scontrol delete PartitionName=urgent")


# -- Attacks -----------------------------------------------------------------------------------------------------------


def test_owner_of_a_job_cannot_take_more(cluster):
    victim = submit(cluster, "alice", 5)
    running(cluster, victim)
    [tenant] = tenants(cluster)
    # A quota belongs to the primary group of its user.
    _status, text = srun(cluster, "bob", "--gres=quota:1", f"vgpu-run {tenant} echo inside")
    assert "inside" not in text and "Join its group, alice" in text, text
    # The environment names another job, and the lease service takes no request of a user.
    ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('/run/openfleet-gpu-lease.sock'); "
    ask += "s.sendall(sys.argv[1].encode() + b'\\n'); print(s.recv(65536).decode())"
    requests = [
        {"op": "job_begin", "job": "1", "user": "bob", "units": 9, "partition": ""},
        {"op": "job_end", "job": victim},
        {"op": "jobs"},
    ]
    calls = "; ".join(f"python3 -c {shlex.quote(ask)} {shlex.quote(json.dumps(each))}" for each in requests)
    status, text = srun(cluster, "bob", "--gres=quota:1", f"SLURM_JOB_ID={victim}; {calls}; echo $OPENFLEET_VGPU")
    assert status == 0 and text.count("only root may send it") == 3 and tenant not in text, text
    # Root of a user namespace is not the host's root. A user who runs Prolog and Epilog changes nothing.
    end = f"python3 -c {shlex.quote(ask)} {shlex.quote(json.dumps(requests[1]))}"
    epilog = f"env SLURM_SCRIPT_CONTEXT=epilog_slurmd SLURM_JOB_ID={victim} SLURMD_NODENAME={NODE} {PROGRAM}"
    for attempt in (f"unshare --user --map-root-user {end}", epilog, f"unshare --user --map-root-user {epilog}"):
        _status, text = srun(cluster, "bob", "", attempt)
        assert '"ended"' not in text, text
    assert (f"job:alice/{victim}", "40GiB and 50 %") in leases(cluster)
    cluster.ask(f"[ -e /run/openfleet-gpu-jobs/{victim} ]")


def test_names_that_look_like_records_give_no_lease(cluster):
    name = f"x UserId=root(0) JobState=RUNNING Nodes={NODE} CPU_IDs=0 Mem=0 GRES=quota:9 MinCPUsNode=1"
    job = submit(cluster, "bob", 1, options=f"--job-name={shlex.quote(name)}")
    cluster.wait_until(f"scontrol show job {job} | grep -qE 'JobState=RUNNING|[Hh]eld'")
    assert [size for _account, size in leases(cluster)] in ([], ["8GiB and 10 %"])


FORGED = f"x JobState=RUNNING Nodes={NODE} CPU_IDs=0 Mem=0 GRES=quota:9 MinCPUsNode=1"


def test_texts_of_a_job_give_no_larger_lease(cluster):
    """Put a forged record into each text that the owner of a job chooses."""
    cluster.ask(f"mkdir --parents --mode=0777 {shlex.quote('/tmp/' + FORGED)}")
    texts = {"--account": FORGED, "--wckey": FORGED, "--comment": FORGED, "--chdir": "/tmp/" + FORGED}
    jobs = [submit(cluster, "bob", 1, options=shlex.quote(f"{name}={text}")) for name, text in texts.items()]
    for job in jobs:
        # Slurm holds a job whose record is ambiguous. The other jobs run with their leases.
        lease = f"[ -e /run/openfleet-gpu-jobs/{job} ]"
        cluster.wait_until(f"{{ scontrol show job {job} | grep -q held_state || {lease}; }}")
    assert {size for _account, size in leases(cluster)} <= {"8GiB and 10 %"}


def test_tasks_of_an_array_have_a_lease_each(cluster):
    array = submit(cluster, "alice", 2, options="--array=1-4")
    # The last task has the id of the array, and Slurm shows the records of all tasks for this id.
    cluster.wait_until("[ $(gpu-layout lease list --json | grep -o 'job:alice/' | wc -l) = 4 ]")
    assert [size for _account, size in leases(cluster)] == ["16GiB and 20 %"] * 4
    cluster.ask(f"scancel {array}_2")
    cluster.wait_until("[ $(gpu-layout lease list --json | grep -o 'job:alice/' | wc -l) = 3 ]")


def test_process_that_leaves_its_job_does_not_keep_its_lease(cluster):
    status, _text = srun(cluster, "alice", "--gres=quota:2", "setsid nohup sleep 1h >/dev/null 2>&1 & sleep 1")
    assert status == 0
    cluster.wait_until("gpu-layout lease list --json | grep -q '\"leases\": \\[\\]'")
    cluster.ask("pkill -u alice sleep || true")


# -- Many jobs ---------------------------------------------------------------------------------------------------------


def start_jobs(host, requests):
    """Submit a job for each (user, units).

    Returns the (account, size) of each lease by job id.
    """
    write = f"echo $OPENFLEET_LEASE > {STARTED}/$SLURM_JOB_ID; sleep 1d"
    lines = [
        f"runuser -u {user} -- sbatch --parsable --chdir=/ --output=/dev/null --gres=quota:{units} --wrap={shlex.quote(write)}"
        for user, units in requests
    ]
    jobs = host.ask(" && ".join(lines)).split()
    return {
        job: (f"job:{user}/{job}", f"{8 * units}GiB and {10 * units} %") for job, (user, units) in zip(jobs, requests)
    }


def wait_for_starts(host, jobs):
    """Wait until the programs of all jobs have started.

    Starts requeued jobs without Slurm's delay.
    """
    started = " && ".join(["true", *(f"[ -s {STARTED}/{job} ]" for job in jobs)])
    host.wait_until(f"{{ {started}; }} || {{ sleep 1; {NO_DELAY}; false; }}", seconds=400)


def disturbed(host, jobs):
    """Return the jobs that do not run or do not have exactly their lease."""
    shown = [host.state(job) for job in jobs]
    rows = leases(host)
    return [
        (job, state, rows)
        for (job, lease), state in zip(jobs.items(), shown)
        if not state.startswith("JobState=RUNNING ") or rows.count(lease) != 1
    ]


def test_random_jobs_with_kills_leak_and_disturb_nothing(cluster):
    """Start and end random jobs while daemons of the node are killed."""
    draw = random.Random(int(os.environ.get("OPENFLEET_LEASE_SEED", "45")))
    number = int(os.environ.get("OPENFLEET_LEASE_JOBS", "40" if THOROUGH else "8"))
    cluster.ask(f"mkdir --parents --mode=1777 {STARTED}; rm -f {STARTED}/*")
    living, restarts = {}, {}
    kills = dict.fromkeys(DAEMONS, 0)
    bad, submitted = [], 0
    while submitted < number:
        requests = []
        room = UNITS - sum(units for _lease, units in living.values())
        while submitted < number and len(living) + len(requests) < MOST_JOBS:
            units = draw.randint(1, MOST)
            if units > room:
                break
            requests.append((draw.choice(USERS), units))
            room, submitted = room - units, submitted + 1
        new = start_jobs(cluster, requests) if requests else {}
        daemon = draw.choice(DAEMONS)
        kills[daemon] += 1
        # A kill of the lease service also affects jobs that start. slurmd is never killed in a Prolog, because
        # slurmctld finds the affected jobs only when slurmd registers again. slurmd is rarely killed in an Epilog,
        # because slurmctld repeats a lost Epilog only after two minutes.
        if daemon == "slurmd" or draw.random() < 0.5:
            wait_for_starts(cluster, new)
        if daemon == "slurmd" and draw.random() < 0.9:
            cluster.wait_until('[ -z "$(squeue --noheader --states=COMPLETING)" ]')
        cluster.ask(KILL.format(unit=daemon))
        cluster.in_service()
        wait_for_starts(cluster, new)
        living.update({job: (lease, units) for (job, lease), (_user, units) in zip(new.items(), requests)})
        restarts.update({job: cluster.state(job) for job in new})
        bad += disturbed(cluster, {job: lease for job, (lease, _units) in living.items()})
        bad += [(job, state) for job, state in restarts.items() if cluster.state(job) != state]
        ended = draw.sample(sorted(living), draw.randint(1, len(living)))
        cluster.ask("scancel %s" % " ".join(ended))
        for job in ended:
            del living[job], restarts[job]
    print("lease_disturbed", len(bad), "after", number, "jobs and kills of", kills)
    assert bad == []
    cluster.ask("squeue --noheader --format %A | xargs --no-run-if-empty scancel")
    cluster.wait_until('[ -z "$(squeue --noheader)" ]')
    cluster.wait_until("gpu-layout lease list --json | grep -q '\"leases\": \\[\\]'")
    print("lease_leaked", len(tenants(cluster)))
    assert tenants(cluster) == []
