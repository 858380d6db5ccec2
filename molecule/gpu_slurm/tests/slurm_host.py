# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure the scenario's Slurm node for a layout, and run jobs on it."""

from __future__ import annotations

import os
import shlex
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jinja2

from ansible_collections.openfleet.gpu.plugins.filter.slurm_mapping import slurm_mapping
from tests.lab import host_modules
from tests.lab.host_modules import run_module
from tests.lab.lab_fixtures import REPOSITORY
from tests.lab.role_plays import Ask, Done, run_role

NODE = "gpu-a"
WAIT_SECONDS = 120
# Seconds that one step of a role run may take.
RUN_SECONDS = 400
GPUS = range(4)
# Commands that remove the jobs and nodes that slurmctld knows.
FORGET = "rm -f /var/lib/slurm/slurmctld/node_state* /var/lib/slurm/slurmctld/job_state*"
JOB_SUBMIT = """
local gpu_type = dofile("/etc/slurm/require_gpu_type.lua")
function slurm_job_submit(job_desc, part_list, submit_uid)
   if gpu_type.refused(job_desc) then return slurm.ERROR end
   return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   if gpu_type.refused(job_desc) then return slurm.ERROR end
   return slurm.SUCCESS
end
return slurm.SUCCESS
"""
ROLE = REPOSITORY / "roles" / "gpu_slurm"
INVENTORY = REPOSITORY / "molecule" / "gpu_slurm" / "inventory"
# The roles' entry points in the order in which site.yml runs them.
STEPS = (("gpu_slurm", "prepare"), ("gpu_layout", "main"), ("gpu_slurm", "apply"))
# The same steps after the layout's plan, which names the instances that the change keeps.
PLANNED_STEPS = (("gpu_layout", "plan"), *STEPS)
# A shell condition: Slurm has allocated none of the node's GPUs. After a restart of slurmctld, the counts have no
# (IDX:...).
FREE = f"! scontrol -d -o show node {NODE} | grep -oE ' GresUsed=[^ ]*' | grep -qE ':[1-9][0-9]*([(,]|$)'"
SHOWN = f"scontrol -o show node {NODE} | grep -oE '(State|Gres|Reason|SlurmdStartTime)=[^ ]*' | xargs"
TASK_PROLOG = "/usr/lib/openfleet-gpu/slurm/task-prolog"

MIXED = {"sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "1g.10gb", "count": 2}]}
THREE = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 3}]}
SEVEN = {"sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}
SHARED = {"sharing": "shared"}
SLICED = {"sharing": "time_slicing", "time_slicing": {"slice": "default", "replicas": 4}}


def layout(*entries: dict) -> list[dict]:
    """Return a layout with one entry per GPU.

    GPUs beyond the given entries are shared.
    """
    return [dict(entries[index] if index < len(entries) else SHARED, gpus=[index]) for index in GPUS]


def follow(
    wanted: list[dict],
    first: str = "",
    then: str = SHOWN,
    fails: bool = False,
    steps: tuple[tuple[str, str], ...] = STEPS,
    **variables: object,
) -> Ask:
    """Return a run of the roles in the order of site.yml."""
    held = "{{ gpu_slurm__held | default(false) }}"
    given = {"gpu_layout": wanted, "gpu_layout__keep_drained": held, "gpu_layout_on_busy": "fail", **variables}
    return Ask(given, steps=steps, first=first, then=then, fails=fails)


def run(*asks: Ask) -> list[Done]:
    """Run the role on the host once for each of `asks`, in order."""
    return run_role(INVENTORY, "gpu_slurm", "one", list(asks), warm=True)


class SlurmHost:
    """A Slurm host.

    testinfra runs commands on it, and the host's own Python runs modules.
    """

    def __init__(self, name: str, host: Any) -> None:
        self.name, self.host = name, host

    def ask(self, command: str) -> str:
        """Run a shell command, which must succeed, and return its output."""
        return self.host.check_output(command)

    def wait_until(self, condition: str, seconds: int = WAIT_SECONDS) -> str:
        """Wait until a shell condition is true, and return its output."""
        loop = f"timeout {seconds} bash -c {shlex.quote(f'until {condition}; do sleep 0.2; done')}"
        try:
            return self.ask(loop)
        except AssertionError as error:
            log = "tail -n 40 /var/log/slurm/slurmctld.log /var/log/slurm/slurmd.log"
            error.add_note(self.ask(f"scontrol show node {NODE}; squeue; cat /etc/slurm/openfleet_*.conf; {log}"))
            raise

    def module(self, name: str, **arguments: object) -> dict:
        """Run a module, check that it succeeded, and return its result."""
        result = run_module(self.name, name, **arguments)
        assert not result.get("failed"), result
        return result

    # --- the layout and Slurm --------------------------------------------------------------------

    def mapping(self, wanted: list[dict]) -> dict:
        """Return the filter's result for a layout and the host's current state."""
        # Each module takes about a second, most of it for starting Python.
        with ThreadPoolExecutor(3) as pool:
            slurm, state, kept = (
                pool.submit(self.module, "slurm_info"),
                pool.submit(self.gpus),
                pool.submit(self.kept, wanted),
            )
        return slurm_mapping(wanted, slurm=slurm.result(), state=state.result(), node=self.name, kept=kept.result())

    def gpus(self) -> dict:
        """Return the result of gpu_info."""
        return self.module("gpu_info", telemetry=False, holders=False)

    def kept(self, wanted: list[dict]) -> list[str]:
        """Return the UUIDs of the MIG devices that the plan of a layout keeps."""
        # Jobs that must end do not block this plan.
        plan = run_module(self.name, "layout", check=True, layout=wanted, on_busy="wait")["plan_data"]
        return [uuid for gpu in plan["gpus"] for uuid in gpu["kept"]]

    def types(self) -> dict[str, str]:
        """Return the profile of each MIG device and the model of each whole GPU, by UUID."""
        found = {}
        for gpu in self.gpus()["gpus"]:
            parts = [part for one in gpu["mig"]["instances"] for part in [(one["profile"], one["compute_instances"])]]
            if not gpu["mig"]["enabled"]:
                found[gpu["uuid"]] = "h100"
            found.update({compute["mig_uuid"]: profile for profile, computes in parts for compute in computes})
        return found

    def require_types(self, required: bool = True) -> None:
        """Make slurmctld refuse requests for GPUs without a type, or accept them."""
        add = "echo JobSubmitPlugins=lua >> /etc/slurm/slurm.conf; " if required else ""
        self.ask(f"sed -i '/^JobSubmitPlugins=/d' /etc/slurm/slurm.conf; {add}systemctl restart slurmctld")
        self.wait_until("scontrol ping >/dev/null")

    def apply(self, wanted: list[dict]) -> None:
        """Apply a layout to the GPUs, without Slurm."""
        self.module("layout", layout=wanted)

    def write(self, found: dict, types: str) -> None:
        """Write the GRES of a mapping to Slurm's files."""
        assert found["problems"] == [] and found["gres_conf"], found
        self.ask(
            f"sed -i 's/ Gres=[^ ]*/ Gres={found['gres']}/; s/^GresTypes=.*/GresTypes={types}/' "
            "/etc/slurm/slurm.conf /etc/slurm/openfleet_nodes.conf; "
            f"printf '%s\\n' {' '.join(map(shlex.quote, found['gres_conf']))} > /etc/slurm/openfleet_gres.conf; "
            "rm -f /var/lib/openfleet-gpu/slurm-*.json"
        )
        # The layout module reads the devices of jobs from this list.
        self.list_devices(found)

    def configure(self, found: dict) -> None:
        """Write the GRES of a mapping, and apply them as the mapping says."""
        self.write(found, "gpu")
        if found["change"]["restart"]:
            self.restart()
        else:
            self.ask("scontrol reconfigure")

    def restart(self, before: str = "") -> None:
        """Restart slurmctld and slurmd, and wait until slurmd has registered.

        slurmctld restores the state of the node. So the node may look idle before slurmd has registered.
        """
        started = self.node().get("SlurmdStartTime", "")
        # slurmctld reports its start in whole seconds, so the test could not see a second restart within the same
        # second.
        later = f'until [ "$(date +%FT%T)" != "{started}" ]; do sleep 0.1; done'
        self.ask(f"systemctl stop slurmctld slurmd; {before or 'true'}; {later}; systemctl start slurmctld slurmd")
        shown = f"scontrol -o show node {NODE} | grep -o ' SlurmdStartTime=[^ ]*'"
        self.wait_until(f"{shown} | grep -vqE '=(None|{started or 'None'})$'")

    def in_service(self) -> None:
        """Wait until the node accepts jobs. A restart may drain it."""
        resume = f"scontrol update NodeName={NODE} State=RESUME >/dev/null 2>&1"
        self.wait_until(
            f"{{ sinfo --noheader --nodes {NODE} --format %T | grep -qE '^(idle|mixed|allocated)$' || {{ {resume}; false; }}; }}"
        )

    def reset(self, wanted: list[dict], types: str = "gpu", apply: bool = True) -> dict:
        """Cancel all jobs, apply a layout and its GRES, and return the mapping."""
        self.ask("squeue --noheader --format %A | xargs --no-run-if-empty scancel")
        # slurmctld may count the GPUs of a job for some seconds after it has removed the job's record.
        self.wait_until(f'[ -z "$(squeue --noheader)" ] && {FREE}')
        if "pad" in self.node()["Gres"]:
            # The pads of an earlier test would keep the earlier total.
            self.ask(
                "sed -i 's/ Gres=[^ ]*/ Gres=gpu:h100:4/' /etc/slurm/openfleet_nodes.conf; "
                f"echo 'NodeName={NODE} Name=gpu Type=h100 File=/dev/nvidia[0-3]' > /etc/slurm/openfleet_gres.conf"
            )
            self.restart(FORGET)
        if types not in self.ask("scontrol show config | grep '^GresTypes'").split():
            self.ask(f"sed -i 's/^GresTypes=.*/GresTypes={types}/' /etc/slurm/slurm.conf; systemctl restart slurmctld")
            self.wait_until("scontrol ping >/dev/null")
        if apply:
            self.apply(wanted)
        found = self.mapping(wanted)
        if self.follows(found):
            # A restart takes seconds and would change nothing.
            self.list_devices(found)
            self.in_service()
            return found
        self.write(found, types)
        # After a count mismatch, slurmctld 24.11 may give a GPU to jobs and to shards at the same time. Remove the
        # state of earlier tests, so that this has no effect on the next test.
        self.restart(FORGET)
        self.in_service()
        return found

    def follows(self, found: dict) -> bool:
        """Return whether Slurm and its files already have the GRES of a mapping."""
        lines = self.ask("cat /etc/slurm/openfleet_gres.conf").splitlines()
        node = f"grep -q ' Gres={found['gres']}$' /etc/slurm/openfleet_nodes.conf"
        same = self.host.run(f"! ls /var/lib/openfleet-gpu/slurm-*.json 2>/dev/null && {node}").rc == 0
        return same and lines == found["gres_conf"] and found["change"]["way"] == "nothing"

    def list_devices(self, found: dict) -> dict:
        """List the devices of a mapping. Return the result of the module."""
        # With these settings, systemd would mount a new /proc, in which the driver's files of the simulator are
        # missing.
        folder = "/run/systemd/system/openfleet-slurm-devices.service.d"
        settings = "[Service]\\nProtectKernelTunables=no\\nProtectControlGroups=no\\n"
        write = f"mkdir -p {folder}; printf '{settings}' > {folder}/lab.conf; systemctl daemon-reload"
        self.ask(f"[ -e {folder}/lab.conf ] || {{ {write}; }}")
        template = jinja2.Environment(autoescape=False)
        template.filters["dirname"] = os.path.dirname
        unit = template.from_string((ROLE / "templates" / "openfleet-slurm-devices.service.j2").read_text())
        return self.module(
            "slurm_task_prolog",
            node=NODE,
            gres_conf=found["gres_conf"],
            devices=found["devices"],
            gres_file="/etc/slurm/openfleet_gres.conf",
            program=(ROLE / "files" / "task-prolog").read_text(),
            unit=unit.render(gpu_slurm__gres_file="/etc/slurm/openfleet_gres.conf"),
        )

    def set_task_prolog(self, path: str) -> None:
        """Set TaskProlog in slurm.conf, or remove it if the path is empty."""
        current = f"scontrol show config | grep -q '^TaskProlog *= {path or '(null)'}$'"
        if self.host.run(current).rc == 0:
            return
        line = f"sed -i '1i TaskProlog={path}' /etc/slurm/slurm.conf; " if path else ""
        self.ask(f"sed -i '/^TaskProlog=/d' /etc/slurm/slurm.conf; {line}scontrol reconfigure")
        self.wait_until(current)

    # --- jobs ------------------------------------------------------------------------------------

    def queue(self, gres: str) -> tuple[str, str]:
        """Submit a job, and return its id and the file with its environment."""
        file = f"/tmp/job-{uuid.uuid4().hex}"
        script = f"env > {file}.new; mv {file}.new {file}; sleep 1d"
        options = f"--parsable --chdir=/ --output=/dev/null --gres={gres} --wrap={shlex.quote(script)}"
        return self.ask(f"sbatch {options}").strip(), file

    def submit(self, gres: str) -> tuple[str, dict[str, str]]:
        """Submit a job, wait until it runs, and return its id and its environment."""
        return self.running(*self.queue(gres))

    def running(self, job: str, file: str) -> tuple[str, dict[str, str]]:
        """Wait until a job from `queue` runs, and return its id and its environment."""
        self.wait_until(f"[ -e {file} ]")
        lines = self.ask(f"cat {file}").splitlines()
        return job, dict(line.split("=", 1) for line in lines if "=" in line)

    def state(self, job: str) -> str:
        """Return the state of a job, and how often it was requeued."""
        return self.ask(f"scontrol show job {job} | grep -oE '(JobState|Restarts)=[A-Z0-9]+' | xargs")

    def move_start(self, job: str, seconds: int) -> None:
        """Move the start of a running job into the past.

        Edits slurmctld's saved state, in which a time has eight bytes, because no test can wait for hours.
        """
        shown = f"SLURM_TIME_FORMAT=%s squeue --noheader --format %S --jobs {job}"
        start = int(self.ask(shown))
        script = (
            "import pathlib, struct; "
            "path = pathlib.Path('/var/lib/slurm/slurmctld/job_state'); "
            f"path.write_bytes(path.read_bytes().replace(struct.pack('>q', {start}), struct.pack('>q', {start - seconds})))"
        )
        self.ask(f"systemctl stop slurmctld; python3 -c {shlex.quote(script)}; systemctl start slurmctld")
        self.wait_until(f'[ "$({shown})" = {start - seconds} ]')

    def node(self) -> dict[str, str]:
        """Return the fields of the node in Slurm."""
        return dict(word.split("=", 1) for word in self.ask(f"scontrol -o show node {NODE}").split() if "=" in word)


def prepared(name: str, host: Any) -> SlurmHost:
    """Return a lab host that is ready for the tests.

    It has the collection's modules, the device nodes of the GPUs and the rule for requests.
    """
    found = SlurmHost(name, host)
    host_modules.install(name)
    # The simulator creates device nodes for capabilities, but not for GPUs. slurmd only checks that the GPUs' nodes
    # exist.
    names = " ".join(f"/dev/nvidia{index}" for index in GPUS)
    found.ask(f"for name in {names}; do [ -e $name ] || mknod -m 666 $name c 1 3; done")
    rule = (REPOSITORY / "roles/gpu_slurm/files/require_gpu_type.lua").read_text(encoding="utf-8")
    for file, text in (("require_gpu_type.lua", rule), ("job_submit.lua", JOB_SUBMIT)):
        found.ask(f"printf %s {shlex.quote(text)} > /etc/slurm/{file}; chmod 644 /etc/slurm/{file}")
    return found
