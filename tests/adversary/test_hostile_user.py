# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that users' names, texts and open files cannot make root affect others.

Two unprivileged users' real processes run on the real /proc. Device nodes are files in a folder. On a host without a
driver, the scan recognizes them by name.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change.terminate import end_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import bare_handles
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import find as holders
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import mps as holders_mps
from ansible_collections.openfleet.gpu.plugins.module_utils.holders import processes as holders_proc
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.bare_handles import may_be_handed
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.cgroup import Origin, parse_cgroup
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.devices import Devices
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.essential_units import is_essential, is_on_bus
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Process, to_data
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.disturbance import Disturbance
from ansible_collections.openfleet.gpu.plugins.module_utils.printable import printable
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import file_worker, peer, proc_files
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.command_line import shown
from tests.adversary.attackers import ALICE, BOB, HOLD, PYTHON, gpu, holding, host, named, process, public_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")


@pytest.mark.parametrize(
    ("letter", "written"),
    [
        ("\r", "\\x0d"),
        ("\n", "\\x0a"),
        ("\x1b", "\\x1b"),
        ("\x85", "\\x85"),
        ("\u2028", "\\u2028"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
        ("\udcff", "\\udcff"),
    ],
)
def test_control_characters_of_a_command_line_are_escaped(letter, written):
    assert printable("a%sb" % letter) == "a%sb" % written
    assert shown(["python3", "train%s.py" % letter]) == "python3 train%s.py" % written


@pytest.mark.parametrize("text", ["", "python3 train.py --name=Z\u00fcrich", "\u8bad\u7ec3"])
def test_other_characters_stay(text):
    assert printable(text) == text


@pytest.fixture
def folder():
    with public_folder() as made:
        (made / "dev").mkdir()
        for name in ("nvidia0", "nvidia1"):
            (made / "dev" / name).touch()
        yield made


def never(command, **_options):
    raise AssertionError("a user had root run %s" % command)


def look(folder, *gpus, run=never):
    """Return root's holders that belong to these users."""
    found = find_holders(host(*(gpus or (gpu(0), gpu(1)))), dev=str(folder / "dev"), run=run, kubelet_directory="/none")
    return [holder for holder in found if holder.user in (str(ALICE), str(BOB)) or holder.kind in ("mps", "slurm")]


# --- Finding 1: MPS ---------------------------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("name", ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"])
def test_mps_daemon_of_a_user_is_not_queried(folder, name):
    with holding(user=ALICE, program=named(folder, name), CUDA_MPS_PIPE_DIRECTORY=str(folder)):
        assert look(folder) == []


@as_root
def test_name_and_title_cannot_pose_as_roots_daemon(folder):
    """Check that a process name cannot imitate a daemon of root.

    The kernel truncates names after 15 characters, and escapes line breaks in /proc/PID/status.
    """
    pretend = "open('/proc/self/comm', 'w').write(sys.argv[1])\n" + HOLD.replace("sys.argv[1:]", "sys.argv[2:]")
    for name in ("slurmd", "nvidia-cuda-mps", "x\nUid:\t0\t0\t0\t0"):
        with process(PYTHON, "-c", "import sys\n" + pretend, name, "-N", "gpu-a", user=ALICE):
            assert look(folder) == []


@as_root
def test_endless_mps_servers_do_not_block(folder):
    """Never query a user's daemons."""
    program = named(folder, "nvidia-cuda-mps-control")
    start = (
        "import os\nfor _ in range(9):\n    os.fork() or os.execv(%r, ['x', '-c', 'import sys; sys.stdin.read()'])\n"
    )
    with process(PYTHON, "-c", start % str(program) + HOLD, user=ALICE):
        assert look(folder) == []


# --- Finding 3: who holds a GPU -----------------------------------------------------------------------------------------


@as_root
def test_slurmd_of_a_user_with_a_job_number_holds_nothing(folder):
    variables = {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
    with holding("-N", "--help", user=ALICE, program=named(folder, "slurmd"), **variables):
        assert look(folder) == []


@as_root
def test_process_with_the_name_of_the_scan_is_not_hidden(folder):
    with holding(folder / "dev/nvidia0", "metrics", user=ALICE, program=named(folder, "gpu-layout")) as held:
        assert [(holder.pid, holder.user) for holder in look(folder)] == [(held.pid, str(ALICE))]


# --- Names and sizes ----------------------------------------------------------------------------------------------------

HOSTILE = [
    b"\r\x1b[2J\x1b]0;root\x07",
    "\x85---\u2028- hosts: localhost".encode(),
    b"{{ lookup('pipe', 'id') }}",
    b"../../etc/cron.d/x",
    "\u202etxt.exe".encode(),
    b"\xff\xfe\x80",
    b"a" * 10000,
    b"\n" * 500,
]


@as_root
def test_any_process_name_is_one_line_of_text(folder):
    with holding(folder / "dev/nvidia0", *HOSTILE, user=ALICE) as held:
        (holder,) = look(folder)
        assert holder.pid == held.pid
        for text in (holder.who, holder.command, holder.user):
            assert text.isprintable() and len(text) <= 4000
        # end_holders compares the process with the text that the operator saw, and then ends it.
        (ended,) = end_holders([Disturbance("gpu 0", (holder,))], grace_seconds=60)
        assert ended == holder.who and held.wait() == -signal.SIGTERM


@as_root
def test_argument_of_megabytes_does_not_slow_a_scan(folder):
    words = [b"--token=s3cret", *[b"x" * 100_000] * 12]
    with holding(folder / "dev/nvidia0", folder / "dev/nvidia1", *words, user=ALICE):
        found = look(folder)
        assert len(found) == 2 and len(json.dumps(to_data(found))) < 8000
        assert "s3cret" not in repr(found) and "--token=***" in repr(found)


@as_root
def test_many_holders_are_named_in_part(folder):
    """Name only some of the holders.

    Messages and results must stay readable for any number of processes.
    """
    with holding(folder / "dev/nvidia0", user=ALICE):
        (holder,) = look(folder)
    crowd = Disturbance("gpu 0", tuple(replace(holder, pid=n, who="pid %d" % n) for n in range(30000)))
    assert len(str(crowd)) < 1000 and str(crowd).endswith(", 29980 more")
    assert len(crowd.to_data()["who"]) == 201


CROWD = "import os\nfor _ in range(200): os.dup(0)\n"


@as_root
def test_process_with_very_many_files_hides_and_blocks_no_other(folder, monkeypatch):
    """Check that the scan reads other processes.

    If a process has very many files, the scan reads most of them after all other processes.
    """
    monkeypatch.setattr(holders_proc, "_FEW_FILES", 100)
    crowded = process(PYTHON, "-c", CROWD + HOLD, folder / "dev/nvidia0", user=ALICE)
    with crowded as crowd, holding(folder / "dev/nvidia1", user=BOB) as held:
        assert [(h.pid, h.gpu_uuid) for h in look(folder)] == [(crowd.pid, "GPU-0"), (held.pid, "GPU-1")]


@as_root
def test_scan_ends_at_its_deadline_and_names_unread_processes(folder, monkeypatch):
    """Let many processes with many files use all the time.

    Unread processes count as unknown on every GPU.
    """
    with process(PYTHON, "-c", CROWD + HOLD, folder / "dev/nvidia0", user=ALICE) as crowd:
        real, passed = holders_proc.node_of, []

        def node_of(path, *arguments):
            # Simulate that the first file of the many-file process took the whole time.
            passed.extend([path] * path.startswith("/proc/%d/" % crowd.pid))
            return real(path, *arguments)

        monkeypatch.setattr(holders_proc, "node_of", node_of)
        monkeypatch.setattr(holders, "_LOOK_SECONDS", -1.0)
        found = find_holders(host(gpu(0), gpu(1)), dev=str(folder / "dev"), run=never, kubelet_directory="/none")
        told = [h.who for h in found if h.kind == "unknown" and "could not be read in time" in h.who]
        assert len(told) == 2 and passed == [] and not [h for h in found if h.pid == crowd.pid]
        clock = iter([0.0] * 2000)
        monkeypatch.setattr(holders_proc, "_pids", lambda _proc: [crowd.pid])
        monkeypatch.setattr(holders_proc.time, "monotonic", lambda: 1e9 if len(passed) >= 150 else next(clock))
        monkeypatch.setattr(holders_proc, "_EVERY", 100)
        seen = holders_proc.scan(Devices(host(gpu(0)), "/proc", str(folder / "dev")), deadline=1.0)
        assert seen.crowded == (crowd.pid,) and len(passed) == 200


# --- Races: between the scan and the signal ---------------------------------------------------------------------------


class _CloneArguments(ctypes.Structure):
    """The structure clone_args of clone(2), version 1."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal"),
            *("stack", "stack_size", "tls", "set_tid", "set_tid_size"),
        )
    )


def start_as(pid: int, command: list[str], user: int) -> int:
    """Start a process with this pid, which the kernel lets root choose.

    See clone3(2), set_tid.
    """
    wanted = (ctypes.c_int * 1)(pid)
    arguments = _CloneArguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    libc = ctypes.PyDLL(None, use_errno=True)
    read_end, write_end = os.pipe()
    made = libc.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if made == 0:
        os.dup2(write_end, 1)
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.execv(command[0], command)
    os.close(write_end)
    if made < 0:
        os.close(read_end)
        pytest.skip("this kernel does not allow choosing a pid: %s" % os.strerror(ctypes.get_errno()))
    with os.fdopen(read_end) as pipe:
        assert pipe.readline() == "open\n"
    return made


def began(pid: object) -> int:
    """Return the process's start time in the kernel's hundredths of a second."""
    return int(Path("/proc/%s/stat" % pid).read_text().rpartition(")")[2].split()[19])


def newest() -> int:
    with process("sh", "-c", "echo open; read _", user=BOB) as made:
        return began(made.pid)


@as_root
def test_reused_pid_gets_no_signal(folder):
    hold = "print('open', flush=True)\nimport time\nwhile True: time.sleep(1000)"
    command = [str(PYTHON), "-c", "f = open(%r)\n%s" % (str(folder / "dev/nvidia0"), hold)]
    with process(*command, user=ALICE) as held:
        (holder,) = look(folder)
        before = began(held.pid)
    while newest() == before:
        pass
    # The command line is the same, but the user differs.
    victim = start_as(held.pid, command, BOB)
    try:
        assert victim == held.pid
        assert end_holders([Disturbance("gpu 0", (holder,))], grace_seconds=0) == ()
        assert os.waitpid(victim, os.WNOHANG) == (0, 0)
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


@as_root
def test_process_that_released_the_gpu_gets_no_signal(folder):
    """Send no signal to a process that no longer has the GPU open.

    Here, exec closes the files that Python opened.
    """
    become = HOLD + "\nimport os\nos.execv('/bin/sh', ['sh', '-c', 'echo other; exec sleep 1000'])"
    with process(PYTHON, "-c", become, folder / "dev/nvidia0", user=ALICE) as held:
        (holder,) = look(folder)
        # The process executes the next program when its input ends.
        held.stdin.close()
        assert held.stdout.readline() == b"other\n"
        assert end_holders([Disturbance("gpu 0", (holder,))], grace_seconds=0) == ()
        assert held.poll() is None


@as_root
@pytest.mark.parametrize(
    "told", [{"kind": "process"}, {"watches": True}, {"job": "7"}, {"unit_or_container": "user@61001.service"},
             {"unit_or_container": "docker container web"}, {"unit_or_container": None, "user": "of a person"}]
)  # fmt: skip
def test_users_of_the_gpu_and_user_processes_are_ended(folder, told):
    """End processes that NVML lists, and other processes except system services."""
    with holding(folder / "dev/nvidia0", user=ALICE) as held:
        (holder,) = look(folder)
        assert not may_be_handed(replace(holder, **{"unit_or_container": "train.service", **told}))
        assert may_be_handed(replace(holder, unit_or_container="train.service"))
        assert end_holders([Disturbance("gpu 0", (replace(holder, **told),))], grace_seconds=60)
        assert held.wait() == -signal.SIGTERM


def test_mapped_node_is_recognized_by_its_number(monkeypatch, tmp_path):
    """Recognize a mapped node by its number.

    The process chose the node's path in a user's mount namespace.
    """
    file = tmp_path / "dev" / "nvidia0"
    file.parent.mkdir()
    file.write_bytes(bytes(4096))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 4096, prot=mmap.PROT_READ):
        assert bare_handles.has_mapped(os.getpid())
        monkeypatch.setattr(bare_handles, "_majors", lambda: {1})
        assert not bare_handles.has_mapped(os.getpid())


def test_unresponsive_mapped_file_blocks_only_a_child(monkeypatch, tmp_path):
    """Let an unresponsive mapped file block only a child process, not the scan.

    The kernel may block root as long as the user likes, while the host's lock is held.
    """
    here = os.getpid()

    def waits(_path):
        assert os.getpid() != here
        time.sleep(300)

    monkeypatch.setattr(file_worker, "_SECONDS", 0.1)
    monkeypatch.setattr(bare_handles, "device_of", waits)
    monkeypatch.setattr(bare_handles, "_majors", lambda: {1})
    file = tmp_path / "dev" / "nvidia0"
    file.parent.mkdir()
    file.write_bytes(bytes(4096))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 4096, prot=mmap.PROT_READ):
        assert not bare_handles.has_mapped(here)


@as_root
def test_processes_of_root_are_not_ended(folder):
    listed = [Process(os.getpid(), "compute"), Process(1, "compute"), Process(os.getppid(), "compute")]
    found = find_holders(host(gpu(0, listed)), dev=str(folder / "dev"), run=never, kubelet_directory="/none")
    with pytest.raises(Exception, match="it is part of this run, or essential for the host"):
        end_holders([Disturbance("gpu 0", found)], grace_seconds=0)


@as_root
@pytest.mark.parametrize("unit", ["dbus.service", "dbus-broker.service", "systemd-logind.service", "polkit.service"])
def test_service_that_receives_files_is_not_ended(folder, unit):
    """Do not end the message bus.

    The bus keeps a file that a user sent until the receiver reads it, so the bus has the GPU open for that time.
    """
    with holding(folder / "dev/nvidia0", user=BOB) as held:
        (holder,) = look(folder)
        with pytest.raises(ApplyError, match="essential for the host") as error:
            end_holders([Disturbance("gpu 0", (replace(holder, unit_or_container=unit),))], grace_seconds=0)
        assert held.poll() is None and "passed the open file" in error.value.cure


def test_service_on_the_bus_is_not_ended(folder, tmp_path, monkeypatch):
    """Do not end a service that systemd lists on the bus.

    Users can send files to any service on the bus.
    """
    (tmp_path / "systemctl").write_text(
        '#!/bin/sh\ncase "$*" in *" -- vendor.service") echo BusName=org.example.Vendor ;; *) echo BusName= ;; esac\n'
    )
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    assert not is_on_bus("train.service") and not is_on_bus(None) and not is_on_bus("x' --help.service")
    with holding(folder / "dev/nvidia0", user=BOB) as held:
        (holder,) = look(folder)
        with pytest.raises(ApplyError, match="essential for the host"):
            end_holders([Disturbance("gpu 0", (replace(holder, unit_or_container="vendor.service"),))], grace_seconds=0)
        assert held.poll() is None


@pytest.mark.parametrize(
    "unit",
    [
        None,
        "train.service",
        "dbus.service.service",
        "podman container dbus.service",
        "user@61001.service",
        # Users' jobs and sessions may run in these units.
        "cron.service",
        "ssh.service",
        "systemd-nspawn@a.service",
    ],
)
def test_processes_in_user_sessions_are_ended(unit):
    assert not is_essential(unit)


# --- Names that end a line --------------------------------------------------------------------------------------------------

CALLED = "open('/proc/self/comm', 'w', newline='').write(sys.argv.pop(1).encode().decode('unicode_escape'))\n" + HOLD
#: At most 15 characters. The kernel escapes only line feeds.
ROOTS_LINE = "\\rUid:\\t0\\t0\\t0\\t0"


@as_root
@pytest.mark.parametrize("program", ["nvidia-smi", "dcgm-exporter"])
def test_name_with_a_carriage_return_cannot_pose_as_root(folder, program):
    """Do not accept a carriage return in a name as the end of a line.

    Otherwise the process would count as a watcher without instances, or as an MPS or Slurm daemon whose responses root
    trusts.
    """
    command = [named(folder, program), "-c", "import sys\n" + CALLED, ROOTS_LINE, folder / "dev/nvidia0"]
    with process(*command, user=ALICE) as made:
        assert b"\rUid:\t0\t0\t0\t0\n" in Path("/proc/%d/status" % made.pid).read_bytes()
        (holder,) = look(folder)
        assert (holder.pid, holder.user, holder.watches) == (made.pid, str(ALICE), False)
        seen = holders_proc.Processes("/proc", {}, (), True, None)
        assert not seen.runs_as_root(made.pid) and holders_proc.owner_of(made.pid) == ALICE
        with peer.looking_at(made.pid) as other:
            assert other.uids == {ALICE}


@as_root
def test_name_with_a_carriage_return_cannot_pose_as_roots_daemon(folder):
    """Check the user of a process that changes its name.

    The process has the daemon's name while its name is read, and another name while its user is read.
    """
    program = named(folder, "nvidia-cuda-mps-control")
    with process(program, "-c", "import sys\n" + CALLED, ROOTS_LINE, user=ALICE) as made:
        seen = holders_proc.Seen(made.pid, "nvidia-cuda-mps")
        processes = holders_proc.Processes("/proc", {made.pid: seen}, (), True, None)
        assert processes.named("nvidia-cuda-mps-control") == [seen]
        assert holders_mps.mps(Devices(host(gpu(0))), processes, (gpu(0),), never) == []


CONTAINER_ID = "d" * 64


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize(
    "posed",
    [
        "system.slice/docker-%s.scope" % CONTAINER_ID,
        "system.slice/dcgm-exporter.service",
        "system.slice/slurmstepd.scope/job_7",
        "kubepods/podaaaaaaaa-1111-1111-1111-aaaaaaaaaaaa",
    ],
    ids=["container", "unit", "job", "pod"],
)
def test_cgroup_name_cannot_add_a_line(tmp_path, end, posed):
    """Accept only a line feed as the end of a line in names of cgroups.

    Users choose the names of cgroups below their own service manager. If a name imitated another container, root would
    stop that container or send secrets to it.
    """
    path = "/user.slice/user-61001.slice/user@61001.service/x%s0::/%s" % (end, posed)
    (tmp_path / "cgroup").write_bytes(("0::%s\n" % path).encode())
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        texts = [proc_files.read(str(tmp_path / "cgroup")), peer.Process(1, folder).cgroup]
    finally:
        os.close(folder)
    # The parser attributes the container to the user.
    users = (
        Origin("docker@61001 container " + "d" * 12, CONTAINER_ID)
        if "docker" in posed
        else Origin("user@61001.service")
    )
    assert [parse_cgroup(text) for text in texts] == [users, users]


def test_container_of_the_host_is_removed_from_a_path_once():
    """Remove only the container's outer path.

    A cgroup with the same name below it belongs to a user.
    """
    own = "/machine.slice/libpod-%s.scope" % CONTAINER_ID
    users = "/user.slice/user-61001.slice/user@61001.service"
    for posed in ("/%s/system.slice/postgresql.service" % CONTAINER_ID, "%s/system.slice/a.service" % own):
        found = parse_cgroup("0::%s%s%s\n" % (own, users, posed), CONTAINER_ID).unit_or_container
        assert found is not None and "@61001 container" in found
