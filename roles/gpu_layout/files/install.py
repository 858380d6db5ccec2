# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the command gpu-layout, the host's layout and the units that restore and watch it, or takes them away.

The role gpu_layout runs it on the host, with all of an installation as one JSON object on standard input, so that a run
that changes nothing costs one command on the host, not one for each file:

    {"state": "present", "modules": {path: text}, "layout": [...], "unit": text, "try": true,
     "metrics": {"directory": path or "", "service": text, "timer": text},
     "readers": {"accounts": [name], "state_directory": path}}

A layout that is not tried, because it waits for a reboot, is on trial: the one before it is kept, and comes back with the
state "former".

With the state "absent", "records" may name the directory of the host's records, which goes then too.

Prints {"changed": bool, "done": [text]}.

In a checkout `install.py --build FILE` makes the command alone, pynvml included: one file for hosts without Ansible.

The command is a zip archive that Python runs. Python keeps no bytecode of modules in an archive, which would cost
0.1 s at each start, so the archive carries the bytecode that the installing interpreter made; any other falls back to
the source beside it.

Bytecode of the same source need not be the same bytes, so that an archive is not compared with a new one. It ends with a
comment instead: a digest of what it was made from, and one of all its bytes before. A command of which either does not
hold is written anew, with the reason in what was done.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import pwd
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Callable

#: Everything an installation consists of, below the root given.
COMMAND = "usr/local/bin/gpu-layout"
LAYOUT = "etc/openfleet-gpu/layout.json"
UNIT = "gpu-layout.service"
UNIT_FILE = "etc/systemd/system/" + UNIT
#: What a layout on trial replaces is kept under this suffix; empty where there was none.
FORMER = ".former"
KEPT = (LAYOUT, UNIT_FILE)

#: What tells Prometheus of the layout, as often as the timer says.
METRICS, METRICS_TIMER = "gpu-layout-metrics.service", "gpu-layout-metrics.timer"
METRICS_FILES = tuple("etc/systemd/system/" + unit for unit in (METRICS, METRICS_TIMER))
#: Where its file is, and which directories were made for it.
METRICS_RECORD = "etc/openfleet-gpu/metrics.json"
TEXTFILE = "openfleet_gpu_layout.prom"
NOT_RECORDED = {"directory": "", "made": []}

#: Of the command.
MODE = 0o755
#: Of a SHA-256 in hexadecimal.
SEAL_LENGTH = 64

#: Who may ask who holds the GPUs, by a rule of sudo for exactly that. sudo reads no file with a dot in its name, as one that is
#: being written has.
SUDOERS = "etc/sudoers.d/openfleet-gpu-holders"
READERS = "etc/openfleet-gpu/readers.json"
ASK = "/%s holders --json" % COMMAND
#: No capital letters: in sudoers they are names of aliases, ALL among them.
ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")
RULE = """\
# Written by the role openfleet.gpu.gpu_layout; gpu_layout_readers: [] takes it away.
# This command with these words and no other, as root, in an environment that the caller has no part in.
Cmnd_Alias OPENFLEET_GPU_HOLDERS = {ask}
Defaults!OPENFLEET_GPU_HOLDERS env_reset, !setenv, !env_keep, !env_check, !requiretty
Defaults!OPENFLEET_GPU_HOLDERS secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
{accounts} ALL = (root) NOPASSWD: NOSETENV: OPENFLEET_GPU_HOLDERS
"""

PACKAGE = "openfleet_gpu"
MAIN = "import sys\n\nfrom %s.cli.main import main\n\nsys.exit(main())\n" % PACKAGE
#: Of module_utils, what only modules need: runner imports Ansible.
LEFT_OUT = ("layout_module.py", "runner.py")


class Installation:
    """The files below `root`; with `check` nothing is changed, only said."""

    def __init__(self, root: Path, check: bool) -> None:
        self.root, self.check = root, check
        self.done: list[str] = []

    def path(self, relative: str) -> Path:
        return self.root / relative

    def write(
        self, relative: str, content: bytes, mode: int = 0o644, check: Callable[[Path], None] = lambda new: None
    ) -> None:
        """A reader finds the old file or the new one, never part of one. `check` ends this process where the new one is wrong."""
        path = self.path(relative)
        if path.is_file() and path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == mode:
            return
        self.replace(path, content, mode, check=check)

    def replace(
        self,
        path: Path,
        content: bytes,
        mode: int,
        reason: str = "",
        check: Callable[[Path], None] = lambda new: None,
    ) -> None:
        self.done.append("write %s%s" % (path, ": " + reason if reason else ""))
        if not self.check:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            put_new(new, content, mode)
            check(new)
            new.replace(path)

    def make(self, folder: Path) -> list[str]:
        """The directory, which everybody may read; returns those that were not there, outermost first."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
        for path in missing:
            self.done.append("make %s" % path)
            if not self.check:
                path.mkdir()
                path.chmod(0o755)
        return [str(path) for path in missing]

    def remove(self, relative: str) -> None:
        path = self.path(relative)
        if path.is_file() or path.is_symlink():
            self.done.append("remove %s" % path)
            if not self.check:
                path.unlink()

    def systemctl(self, *arguments: str) -> None:
        """systemd is the host's own: below another root there is none to tell."""
        if self.root == Path("/") and not self.check:
            run(["systemctl", *arguments])


def put_new(path: Path, content: bytes, mode: int) -> None:
    """A file that is new: a link that somebody has put in its place is not followed."""
    if path.exists() or path.is_symlink():
        path.unlink()
    descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)


def run(command: list[str]) -> None:
    unit = METRICS if command[-1] in (METRICS, METRICS_TIMER) else UNIT
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        log = subprocess.run(
            ["journalctl", "--no-pager", "--output=cat", "--lines=20", "--unit", unit],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said = (done.stdout + log.stdout).decode(errors="replace")
        sys.exit("%s failed with status %d:\n%s" % (" ".join(command), done.returncode, said))


def install(target: Installation, bundle: dict) -> None:
    modules, directory = bundle["modules"], bundle["metrics"]["directory"]
    refuse_readers(target, bundle["readers"]["accounts"])
    if directory and not re.fullmatch(r"/[^\s%\"'\\]+", directory):
        sys.exit("gpu_layout_metrics_dir: %r is no absolute path without spaces, quotes and %%." % directory)
    made_from = fingerprint(modules)
    command = target.path(COMMAND)
    reason = difference(command, made_from)
    if reason is not None:
        target.replace(
            command, b"" if target.check else archive(modules, made_from, shebang(sys.executable)), MODE, reason
        )
    for relative in KEPT:
        there = target.path(relative)
        if bundle["try"]:
            target.remove(relative + FORMER)
        elif not target.path(relative + FORMER).exists():
            target.write(relative + FORMER, there.read_bytes() if there.exists() else b"")
    target.write(LAYOUT, (json.dumps(bundle["layout"], indent=2) + "\n").encode())
    target.write(UNIT_FILE, bundle["unit"].encode())
    watched = install_metrics(target, bundle["metrics"])
    if target.done:
        target.systemctl("daemon-reload")
        target.systemctl("enable", "--quiet", UNIT)
        if bundle["try"]:
            # The layout stands already, so this changes no GPU: it proves that the next boot can do it.
            target.systemctl("restart", UNIT)
        if watched:
            target.systemctl("enable", "--quiet", METRICS_TIMER)
            target.systemctl("restart", METRICS_TIMER)
            if bundle["try"]:
                # What it said last was of the layout of before.
                target.systemctl("start", METRICS)
    # Last: no unit has to do with it.
    install_readers(target, bundle["readers"])


def refuse_readers(target: Installation, accounts: list[str]) -> None:
    """End this process, before anything is written, where a rule of sudo cannot be had for these accounts."""
    wrong = [name for name in accounts if not ACCOUNT.fullmatch(name)]
    if wrong:
        sys.exit(
            "gpu_layout_readers: %s is no name of an account (%s)." % (", ".join(map(repr, wrong)), ACCOUNT.pattern)
        )
    if target.check:
        # An earlier task of the same dry run may be the one that would bring sudo and the account.
        return
    if accounts and not visudo():
        sys.exit("gpu_layout_readers: sudo is not installed on this host. Install it, or set gpu_layout_readers: [].")
    # Below another root there are other accounts.
    missing = [name for name in accounts if not exists(name)] if target.root == Path("/") else []
    if missing:
        sys.exit(
            "gpu_layout_readers: this host has no account %s. Create it first, or mend the name: whoever gets an account "
            "of that name later would have the rule." % ", ".join(missing)
        )


def exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


def visudo() -> str | None:
    return shutil.which("visudo", path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin")


def install_readers(target: Installation, readers: dict) -> None:
    """The rule, and what the command asks of this installation; or neither."""
    if not readers["accounts"]:
        uninstall_readers(target)
        return
    target.write(READERS, (json.dumps(readers, indent=2) + "\n").encode(), 0o600)
    # In this order: whoever may run it finds the lock that keeps it from running many times at once.
    rule = RULE.format(ask=ASK, accounts=", ".join(sorted(set(readers["accounts"]))))
    target.write(SUDOERS, rule.encode(), 0o440, accepted)


def accepted(new: Path) -> None:
    """Ask visudo about a new file of sudo: a wrong one would take sudo away from everybody."""
    done = subprocess.run(
        [visudo() or "visudo", "-cf", str(new)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        new.unlink()
        sys.exit("visudo refuses the rule for gpu_layout_readers:\n%s" % done.stdout.decode(errors="replace"))


def uninstall_readers(target: Installation) -> None:
    target.remove(SUDOERS)
    target.remove(READERS)


def install_metrics(target: Installation, metrics: dict) -> bool:
    """The unit and its timer, or neither. Returns whether they are there."""
    directory, before = metrics["directory"], recorded(target)
    if before["directory"] != directory:
        uninstall_metrics(target, before)
        before = NOT_RECORDED
    if not directory:
        return False
    made = target.make(target.path(directory.lstrip("/")))
    record = {"directory": directory, "made": list(dict.fromkeys([*before["made"], *made]))}
    target.write(METRICS_RECORD, (json.dumps(record, indent=2) + "\n").encode())
    for relative, text in zip(METRICS_FILES, (metrics["service"], metrics["timer"])):
        target.write(relative, text.encode())
    return True


def recorded(target: Installation) -> dict:
    try:
        return json.loads(target.path(METRICS_RECORD).read_text())
    except FileNotFoundError:
        return NOT_RECORDED


def uninstall_metrics(target: Installation, record: dict) -> None:
    """With the file, of which Prometheus would go on believing what it says."""
    if target.path(METRICS_FILES[1]).exists():
        target.systemctl("disable", "--quiet", "--now", METRICS_TIMER)
        target.systemctl("stop", METRICS)
    for relative in METRICS_FILES:
        target.remove(relative)
    if record["directory"]:
        target.remove(str(Path(record["directory"].lstrip("/"), TEXTFILE)))
    for folder in map(Path, reversed(record["made"])):
        if folder.is_dir() and not any(folder.iterdir()):
            target.done.append("remove %s" % folder)
            if not target.check:
                folder.rmdir()
    target.remove(METRICS_RECORD)


def bring_back(target: Installation) -> None:
    """The layout of before one that was on trial, and the unit that restored it."""
    for relative in KEPT:
        former = target.path(relative + FORMER)
        if not former.exists():
            continue
        if former.stat().st_size:
            target.write(relative, former.read_bytes())
        else:
            target.remove(relative)
        target.remove(relative + FORMER)
    if target.done:
        target.systemctl("daemon-reload")


def uninstall(target: Installation, bundle: dict) -> None:
    if bundle["readers"]["accounts"]:
        sys.exit(
            "gpu_layout_readers needs the command on the host: set gpu_layout_restore_at_boot: true, or gpu_layout_readers: []."
        )
    if bundle["metrics"]["directory"]:
        sys.exit(
            "gpu_layout_metrics_dir needs the command and the layout on the host: set gpu_layout_restore_at_boot: true, "
            'or gpu_layout_metrics_dir: "".'
        )
    uninstall_readers(target)
    uninstall_metrics(target, recorded(target))
    if target.path(UNIT_FILE).exists():
        target.systemctl("disable", "--quiet", "--now", UNIT)
    for relative in (UNIT_FILE, LAYOUT, UNIT_FILE + FORMER, LAYOUT + FORMER, COMMAND):
        target.remove(relative)
    folder = target.path(LAYOUT).parent
    if not target.check and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if target.done:
        target.systemctl("daemon-reload")
    if bundle.get("records"):
        remove_records(target, Path(bundle["records"]))


def remove_records(target: Installation, folder: Path) -> None:
    """The host's records, wherever they are; the lock that the run itself has just taken is none."""
    if not folder.is_dir():
        return
    if any(path.name != "lock" for path in folder.iterdir()):
        target.done.append("remove %s" % folder)
    if not target.check:
        shutil.rmtree(str(folder.resolve()))


def fingerprint(modules: dict[str, str]) -> bytes:
    """What the command is made from: the sources, and the interpreter whose bytecode it carries."""
    parts = [sys.version, shebang(sys.executable), MAIN, *(part for item in sorted(modules.items()) for part in item)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest().encode()


def shebang(interpreter: str) -> str:
    """Isolated (-I): root runs it, and takes no module from the caller's environment, folder or home."""
    return "%s -I" % interpreter


def difference(command: Path, made_from: bytes) -> str | None:
    """Return why the command has to be written: "" where there is none, None where it is as it should be."""
    try:
        status = command.lstat()
        content = command.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid != os.geteuid():
        return "it belongs to user id %d" % status.st_uid
    if stat.S_IMODE(status.st_mode) != MODE:
        return "its mode is %04o" % stat.S_IMODE(status.st_mode)
    if not content.endswith(seal(content[:-SEAL_LENGTH])):
        return "its content is not what was installed"
    return None if content[:-SEAL_LENGTH].endswith(made_from) else "it is of another release, or of another Python"


def seal(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def archive(modules: dict[str, str], made_from: bytes, interpreter: str) -> bytes:
    """The command: `modules` (texts by path below the package), each Python file also as bytecode."""
    members = {"__main__.py": MAIN, "%s/__init__.py" % PACKAGE: ""}
    members.update(("%s/%s" % (PACKAGE, path), text) for path, text in modules.items())
    content = io.BytesIO()
    content.write(b"#!%s\n" % interpreter.encode())
    with zipfile.ZipFile(content, "a") as bundled:
        # At the very end of the archive.
        bundled.comment = made_from + b"." * SEAL_LENGTH
        for path, text in sorted(members.items()):
            add(bundled, os.path.normpath(path), text.encode())
            if path.endswith(".py"):
                # Stored, not deflated: this is what every start reads.
                add(bundled, os.path.normpath(path) + "c", bytecode(path, text), zipfile.ZIP_STORED)
    whole = content.getvalue()[:-SEAL_LENGTH]
    return whole + seal(whole)


def add(bundled: zipfile.ZipFile, path: str, content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> None:
    bundled.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content, compression)


def bytecode(path: str, text: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gpu-layout-") as folder:
        source, compiled = Path(folder, "source.py"), Path(folder, "compiled.pyc")
        source.write_text(text, encoding="utf-8")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(source), str(compiled), dfile=path, doraise=True, invalidation_mode=mode)
        return compiled.read_bytes()


def modules_of_checkout() -> dict[str, str]:
    """What the role sends: the collection's module_utils and the catalogue."""
    utils = Path(__file__).resolve().parents[3] / "plugins" / "module_utils"
    files = [*utils.glob("*.py"), *utils.glob("cli/*.py"), *utils.glob("models/*.json")]
    return {str(f.relative_to(utils)): f.read_text(encoding="utf-8") for f in files if f.name not in LEFT_OUT}


def build(file: Path) -> None:
    """The command as one file that brings pynvml along."""
    import pynvml

    binding = Path(pynvml.__file__).read_text(encoding="utf-8")
    modules = dict(modules_of_checkout(), **{"../pynvml.py": binding})
    file.write_bytes(archive(modules, fingerprint(modules), "/usr/bin/env python3"))
    file.chmod(MODE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only say what would change")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory")
    parser.add_argument("--build", type=Path, metavar="FILE", help="in a checkout: make the command as one file")
    options = parser.parse_args()
    if options.build:
        build(options.build)
        return 0
    bundle = json.load(sys.stdin)
    target = Installation(options.root, options.check)
    if bundle["state"] == "present":
        install(target, bundle)
    elif bundle["state"] == "former":
        bring_back(target)
    else:
        uninstall(target, bundle)
    print(json.dumps({"changed": bool(target.done), "done": target.done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
