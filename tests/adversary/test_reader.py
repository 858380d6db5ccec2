# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a reader's account can run only the reader of GPU holders as root.

The account uses sudo. The test runs in a mount namespace with the command, the rule, simulated GPUs and a sudoers file
in place of this machine's own.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit import answers
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.holdings import hosts_of
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.make import Order, make
from ansible_collections.openfleet.gpu.plugins.plugin_utils.host_results import gpu_info
from tests.integration.command_host import run_installer
from tests.integration.simulated_host import SimulatedHost

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a rule of sudo needs root"),
    pytest.mark.skipif(shutil.which("sudo") is None, reason="sudo is not installed"),
]

#: An account without permissions. Every machine has it.
ACCOUNT = "nobody"
COMMAND = "/usr/local/bin/gpu-layout"
ASK = [COMMAND, "holders", "--json"]
#: A site's settings for all commands. The rule must not inherit them.
SITE = 'Defaults env_keep += "PYTHONPATH PYTHONSTARTUP GPUSIM_STATE"\nDefaults setenv\n'
LAYOUT = [{"gpus": "all", "sharing": "shared"}]


class Machine:
    """This machine with the command and its rule, as the role installs them.

    The test installs both only in a mount namespace, so the machine itself does not change.
    """

    def __init__(self, folder: Path) -> None:
        # Other users must be able to enter the folder.
        folder.chmod(0o755)
        self.host = SimulatedHost.build(folder / "host").create([{"model": "H100-80GB", "count": 2}])
        self.root = folder / "root"
        self.root.mkdir()
        subprocess.run(["cp", "-a", "/etc", str(self.root)], check=True)
        self.install([ACCOUNT])
        sudoers = self.root / "etc/sudoers"
        sudoers.write_text(f"Defaults env_reset\n{SITE}root ALL=(ALL) ALL\n@includedir /etc/sudoers.d\n")
        # sudo removes variables that name libraries, so register the simulated library with the loader.
        paths = folder / "ld.so.conf"
        paths.write_text(f"{self.host.library}\ninclude /etc/ld.so.conf.d/*.conf\n")
        subprocess.run(["ldconfig", "-X", "-f", str(paths), "-C", str(self.root / "etc/ld.so.cache")], check=True)
        # A folder that every user can write to.
        self.theirs = folder / "theirs"
        self.theirs.mkdir()
        self.theirs.chmod(0o777)
        over = [
            f"mount --bind {self.root}/etc /etc",
            f"mount --bind {self.root}/usr/local/bin /usr/local/bin",
            "mount -t tmpfs -o mode=0755 tmpfs /var/lib",
            "mkdir /var/lib/gpusim",
            f"mount --bind {self.host.folder} /var/lib/gpusim",
            "echo made",
            "read _end",
        ]
        self.namespace = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "bash", "-ec", "\n".join(over)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.namespace.stdout.readline() == "made\n"

    def close(self) -> None:
        self.namespace.communicate()

    def install(self, accounts: list[str]) -> None:
        done = run_installer(
            self.root,
            layout=LAYOUT,
            unit="[Unit]\n",
            readers={"accounts": accounts, "state_directory": "/var/lib/openfleet-gpu"},
        )
        assert not done.get("failed"), done

    def run(self, *command: str, user: str = ACCOUNT, **options) -> subprocess.CompletedProcess:
        """Run the command as a user in the namespace that has the installation."""
        entry = pwd.getpwnam(user)
        become = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            ["nsenter", f"--mount=/proc/{self.namespace.pid}/ns/mnt", f"--wd={self.theirs}",
             *(become if user != "root" else []), *command],
            capture_output=True, text=True, check=False, timeout=120, **options,
        )  # fmt: skip

    def sudo(self, *words: str, **options) -> subprocess.CompletedProcess:
        return self.run("sudo", "-n", *words, **options)

    def state(self):
        """Return the part of root's own result that an audit reads."""
        return used(self.host.module("gpu_info", sockets=True))


@pytest.fixture(scope="module")
def machine():
    with tempfile.TemporaryDirectory(prefix="openfleet-") as folder:
        made = Machine(Path(folder))
        yield made
        made.close()


def told(done: subprocess.CompletedProcess):
    assert done.returncode == 0, done.stdout + done.stderr
    return used(answers.of_helper("a", {"rc": done.returncode, "stdout": done.stdout}))


def used(result):
    """Return the audit's findings for a result: each GPU's id, verdict and facts."""
    order = Order(3600.0, hosts=hosts_of({"a": gpu_info("a", result)}))
    return [(found.id, found.verdict, found.holding) for found in make(order, 1.7e9).findings]


def test_account_may_run_only_the_reader(machine):
    listed = machine.sudo("-l")
    assert listed.returncode == 0, listed.stderr
    allowed = [line.strip() for line in listed.stdout.splitlines() if line.strip().startswith("(")]
    assert allowed == ["(root) NOSETENV: NOPASSWD: %s" % " ".join(ASK)]
    assert told(machine.sudo(*ASK)) == machine.state()


def test_verdict_equals_that_of_the_module(machine):
    """Compare each GPU's facts and verdict while a process holds one of the GPUs."""
    host = machine.host
    holder = host.popen(
        [str(host.bin / "gpusim"), "run", "--gpu", "0", "--", "sh", "-c", "echo on; exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "on\n"
        answer = machine.sudo(*ASK)
        by_module, by_helper = machine.state(), told(answer)
    finally:
        holder.stdin.close()
        holder.wait(60)
        holder.stdout.close()
    assert by_helper == by_module and len(by_helper) == 2
    assert len(by_helper[0][2].holders) == by_helper[0][2].processes_now == 1
    # The helper always checks whether the holder serves clients. If the tests run in a unit, other processes of that
    # unit may do so.
    (one,) = json.loads(answer.stdout)["gpus"][0]["holders"]
    assert one["listens"] in (True, False) and one["clients"] >= 0


REFUSED = [
    [COMMAND],
    [COMMAND, "holders"],
    [*ASK, "--json"],
    [*ASK, "--help"],
    [*ASK, "--state-directory", "/tmp"],
    [COMMAND, "holders", "--js"],
    [COMMAND, "--json", "holders"],
    [COMMAND, "apply"],
    [COMMAND, "metrics", "--textfile", "/etc"],
    [COMMAND, "show", "--json"],
    ["/bin/sh"],
    ["/usr/bin/id"],
    [sys.executable, COMMAND, "holders", "--json"],
    ["-E", *ASK],
    ["PYTHONPATH=/tmp", *ASK],
    ["-u", "daemon", *ASK],
    ["-g", "daemon", *ASK],
    ["-D", "/", *ASK],
    ["-R", "/tmp", *ASK],
    ["-s"],
    ["-i"],
    ["-e", "/etc/sudoers.d/openfleet-gpu-holders"],
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_other_words_and_other_commands_are_refused(machine, words):
    done = machine.sudo(*words)
    assert done.returncode != 0 and done.stdout == ""
    # sudo itself refuses. The command does not run.
    assert "sudo" in done.stderr or "not allowed" in done.stderr, done.stderr


def test_two_words_in_one_argument_are_refused(machine):
    """Refuse the argument in the command itself.

    sudo does not refuse it, because sudo matches words that blanks join.
    """
    done = machine.sudo(COMMAND, "holders --json")
    assert done.returncode == 2 and done.stdout == "" and "invalid choice" in done.stderr


def test_own_file_is_not_the_command(machine):
    copy = machine.theirs / "gpu-layout"
    copy.write_text("#!/bin/sh\necho mine\n")
    copy.chmod(0o755)
    link = machine.theirs / "link"
    link.symlink_to(COMMAND)
    for path in (copy, link, Path("gpu-layout")):
        done = machine.sudo(
            str(path), "holders", "--json", env={**os.environ, "PATH": f"{machine.theirs}:{os.environ['PATH']}"}
        )
        assert done.returncode != 0 and "mine" not in done.stdout


def test_other_account_is_refused(machine):
    done = machine.sudo(*ASK, user="daemon")
    assert done.returncode != 0 and done.stdout == ""


def test_environment_has_no_effect(machine):
    """Ignore the caller's environment.

    The site's sudoers would allow modules, libraries, tools and GPUs from it.
    """
    ran = machine.theirs / "ran"
    for name in ("sitecustomize", "usercustomize", "json", "argparse", "pynvml", "subprocess"):
        (machine.theirs / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
    tools = machine.theirs / "tools"
    tools.mkdir()
    for name in ("nvidia-smi", "nvidia-cuda-mps-control", "scontrol", "systemctl", "docker", "python3"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >>{ran}\n")
        (tools / name).chmod(0o755)
    library = machine.theirs / "preloaded.so"
    source = machine.theirs / "preloaded.c"
    source.write_text(
        '#include <fcntl.h>\n__attribute__((constructor)) static void ran(void)\n{ open("%s", O_CREAT | O_WRONLY, 0666); }\n'
        % machine.theirs.joinpath("preload")
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(machine.theirs), "PYTHONPATH": str(machine.theirs),
        "PYTHONSTARTUP": str(machine.theirs / "json.py"), "PYTHONHOME": str(machine.theirs), "PYTHONINSPECT": "1",
        "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(machine.theirs), "GPUSIM_STATE": str(machine.theirs / "none"),
        "SLURM_CONF": str(machine.theirs / "none"), "OPENFLEET_VGPU_ROOT": str(machine.theirs), "LANG": "de_DE.UTF-8",
    }  # fmt: skip
    # The caller's own processes load the library before sudo starts.
    program = ["env", *(f"{name}={value}" for name, value in environment.items()), "sudo", "-n", *ASK]
    state = told(machine.run(*program))
    assert state == machine.state()
    assert not ran.exists()
    preload = machine.theirs / "preload"
    if preload.exists():
        assert preload.stat().st_uid == pwd.getpwnam(ACCOUNT).pw_uid, "root loaded it"


def test_standard_input_and_ignored_signals_have_no_effect(machine):
    """Ignore the caller's standard input and signal settings.

    The command reads no input, and a caller that ignores SIGCHLD cannot make tools seem to succeed.
    """
    endless = 'trap "" CHLD PIPE; yes | sudo -n "$@"'
    state = told(machine.run("bash", "-c", endless, "-", *ASK))
    assert state == machine.state()


def test_running_change_is_reported(machine):
    lock = "/var/lib/openfleet-gpu/lock"
    script = f'mkdir -p /var/lib/openfleet-gpu; exec 9<>{lock}; flock -x 9; runuser -u {ACCOUNT} -- sudo -n "$@"'
    done = machine.run("bash", "-c", script, "-", *ASK, user="root")
    assert done.returncode == 1 and "another run is changing the layout" in done.stderr
    with pytest.raises(answers.AnswerError, match="another run is changing the layout"):
        answers.of_helper("a", {"rc": 1, "stdout": done.stdout})


def test_other_users_cannot_take_its_lock(machine):
    done = machine.run("flock", "-n", "/etc/openfleet-gpu/readers.json", "true")
    assert done.returncode != 0 and "ermission denied" in done.stderr


def test_without_accounts_there_is_no_rule(machine):
    machine.install([])
    try:
        done = machine.sudo(*ASK)
    finally:
        machine.install([ACCOUNT])
    assert done.returncode != 0 and done.stdout == ""
