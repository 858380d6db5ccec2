# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs an exporter of GPU metrics on the host it runs on, or takes it away, and scrapes it. The role dcgm_exporter runs it.

All of an installation comes as one JSON object on standard input, so that a run that changes nothing costs one command on
the host, not one for each file:

    {"state": "present", "files": {path: {"content": text, "mode": "0644"}}, "web_config": {...}, "users": {name: password},
     "packages": [name], "version": text, "repository": {"url": text, "key": text}, "masked": [unit],
     "embedded": {...} or null, "directories": [path], "health": {...} or null}

Prints {"changed": bool, "done": [text], "archive": architecture or ""}. Exit status 4: the archive of Python packages for this
architecture is missing, and nothing was installed.

Passwords are never printed. Their hashes are made by the C library (crypt(3)), and only where the one that is there does
not fit.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import http.client
import json
import os
import platform
import re
import secrets
import shutil
import ssl
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

EXIT_ARCHIVE = 4

UNIT = "dcgm-exporter.service"
#: All that an installation may consist of, below the root given. Files of a source that is not asked for go.
CONFIG = "etc/openfleet-gpu/exporter"
PROGRAM = "usr/local/lib/openfleet-gpu-exporter"
UNITS = "etc/systemd/system"
QUADLETS = "etc/containers/systemd"
UNIT_FILES = (UNITS + "/" + UNIT, QUADLETS + "/dcgm-exporter.container")
WEB_CONFIG = CONFIG + "/web-config.json"
#: NVIDIA's repository, where the hosts' own sources do not have the packages.
APT_SOURCE, APT_KEY = "etc/apt/sources.list.d/openfleet-dcgm.list", "etc/apt/keyrings/openfleet-dcgm.asc"
DNF_SOURCE, DNF_KEY = "etc/yum.repos.d/openfleet-dcgm.repo", "etc/pki/rpm-gpg/RPM-GPG-KEY-openfleet-dcgm"
#: What the Python packages were made from. It comes last.
STAMP = PROGRAM + "/packages/.requirements"
STATE = ("var/lib/openfleet-gpu-exporter", "var/lib/private/openfleet-gpu-exporter")
#: There where systemd runs the host (sd_booted(3)).
SYSTEMD = "run/systemd/system"

#: bcrypt, as exporter-toolkit reads it: crypt(5) of libxcrypt.
BCRYPT = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}\Z")
COST = 10
SAMPLE = re.compile(r"^(DCGM_FI_\w+|openfleet_gpu_info|openfleet_gpu_lost)\{", re.MULTILINE)


class Installation:
    """The files below `root`; with `check` nothing is changed, only said."""

    def __init__(self, root: Path, check: bool) -> None:
        self.root, self.check = root, check
        self.done: list[str] = []

    def path(self, relative: str) -> Path:
        return self.root / relative

    def write(self, relative: str, content: bytes, mode: int = 0o644) -> bool:
        """True if the file was not so. A reader finds the old file or the new one, never part of one."""
        path = self.path(relative)
        if path.is_file() and path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == mode:
            return False
        self.done.append("write %s" % path)
        if not self.check:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            new = path.with_name(path.name + ".new")
            if new.exists():
                new.unlink()
            # Never readable by others, not even for a moment.
            with os.fdopen(os.open(str(new), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            new.chmod(mode)
            new.replace(path)
        return True

    def remove(self, relative: str) -> bool:
        path = self.path(relative)
        if not (path.exists() or path.is_symlink()):
            return False
        self.done.append("remove %s" % path)
        if not self.check:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(str(path))
            else:
                path.unlink()
        return True

    def prune(self, relative: str) -> None:
        """A directory that is left empty."""
        path = self.path(relative)
        if not self.check and path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    @property
    def booted(self) -> bool:
        return self.path(SYSTEMD).is_dir()

    def systemctl(self, *arguments: str) -> None:
        self.done.append("systemctl " + " ".join(arguments))
        if not self.check:
            run(["systemctl", *arguments])


def output(command: list[str], **more) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)
    return done.returncode, done.stdout.decode(errors="replace")


def run(command: list[str], **more) -> str:
    status, said = output(command, **more)
    if status:
        sys.exit("%s failed with status %d:\n%s" % (" ".join(command), status, said + journal()))
    return said


def journal() -> str:
    return "\n--- journal of %s:\n%s" % (
        UNIT,
        output(["journalctl", "--no-pager", "--output=cat", "--lines=30", "--unit", UNIT])[1],
    )


# --- passwords ----------------------------------------------------------------------------------


def crypt_function():
    for name in ("libcrypt.so.1", "libcrypt.so.2"):
        try:
            function = ctypes.CDLL(name).crypt
        except OSError:
            continue
        function.restype = ctypes.c_char_p
        return lambda password, setting: (function(password.encode(), setting.encode()) or b"").decode()
    sys.exit(
        "dcgm_exporter_basic_auth_users: the host has no libcrypt (package libcrypt1 or libxcrypt) to make hashes with."
    )


def hashes(users: dict[str, str], there: dict[str, str]) -> dict[str, str]:
    """One for each user: the one that is there where it fits."""
    crypt = crypt_function() if users else None
    wanted = {}
    for user, password in sorted(users.items()):
        if len(password.encode()) > 72:
            sys.exit(
                "dcgm_exporter_basic_auth_users: the password of %s has more than the 72 bytes that bcrypt takes."
                % user
            )
        old = there.get(user, "")
        if BCRYPT.match(old) and secrets.compare_digest(crypt(password, old), old):
            wanted[user] = old
            continue
        salt = base64.b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("+", ".")
        # The last character holds two bits only; "O" is such a one.
        new = crypt(password, "$2b$%02d$%sO" % (COST, salt[:21]))
        if not BCRYPT.match(new):
            sys.exit("dcgm_exporter_basic_auth_users: the host's libcrypt cannot make bcrypt hashes.")
        wanted[user] = new
    return wanted


def web_config(target: Installation, bundle: dict) -> str:
    try:
        there = json.loads(target.path(WEB_CONFIG).read_text())["basic_auth_users"]
    except (OSError, ValueError, KeyError, TypeError):
        there = {}
    config = dict(bundle["web_config"])
    if bundle["users"]:
        config["basic_auth_users"] = hashes(bundle["users"], there)
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


# --- packages -----------------------------------------------------------------------------------


def has_apt() -> bool:
    return bool(shutil.which("dpkg-query"))


def there(package: str) -> str:
    """Its version, or nothing."""
    if has_apt():
        status, said = output(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Version}", package])
        return said[2:].strip() if status == 0 and said.startswith("ii") else ""
    status, said = output(["rpm", "--query", "--queryformat=%{VERSION}-%{RELEASE}", package])
    return said.strip() if status == 0 else ""


def missing(packages: list[str], version: str) -> list[str]:
    """What is not installed, as a package manager is asked for it. A version is the exporter's own."""
    lacking = []
    for package in packages:
        has, wanted = there(package), version if package.endswith("-exporter") else ""
        # 1:4.8.2-1 may be asked for as it is, without its epoch, and without its revision.
        names = (has, has.partition(":")[2] or has)
        if not has or (wanted and not any(name == wanted or name.startswith(wanted + "-") for name in names)):
            if wanted and has_apt():
                package += "=%s%s" % (wanted, "" if "-" in wanted else "-*")
            lacking.append(package + "-" + wanted if wanted and not has_apt() else package)
    return lacking


def write_repository(target: Installation, repository: dict) -> None:
    url, key = repository["url"], repository["key"].encode()
    wanted = {}
    if url and has_apt():
        wanted = {APT_KEY: key, APT_SOURCE: ("deb [signed-by=/%s] %s /\n" % (APT_KEY, url)).encode()}
    elif url:
        text = "[openfleet-dcgm]\nname=DCGM, for openfleet.gpu\nbaseurl=%s\nenabled=1\ngpgcheck=1\ngpgkey=file:///%s\n"
        wanted = {DNF_KEY: key, DNF_SOURCE: (text % (url, DNF_KEY)).encode()}
    for path in (APT_KEY, APT_SOURCE, DNF_KEY, DNF_SOURCE):
        if path in wanted:
            target.write(path, wanted[path])
        else:
            target.remove(path)


def bring(target: Installation, bundle: dict) -> None:
    """The packages, with the host's package manager."""
    write_repository(target, bundle["repository"])
    lacking = missing(bundle["packages"], bundle["version"])
    if not lacking:
        return
    target.done.append("install packages %s" % ", ".join(lacking))
    if target.check:
        return
    if has_apt():
        quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        run(["apt-get", "update", "-q"], env=quiet)
        force = ["-o", "Dpkg::Options::=--force-confold", "--allow-downgrades", "--allow-change-held-packages"]
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *force, *lacking], env=quiet)
    else:
        run(["dnf", "install", "-q", "-y", *lacking])
    lacking = missing(bundle["packages"], bundle["version"])
    if lacking:
        sys.exit("after an installation without errors these packages are missing: %s" % ", ".join(lacking))


def take_away(target: Installation, packages: list[str]) -> None:
    installed = [package for package in packages if there(package)]
    if installed:
        target.done.append("remove packages %s" % ", ".join(installed))
        if not target.check:
            quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
            run(["apt-get" if has_apt() else "dnf", "remove", "-q", "-y", *installed], env=quiet)
    write_repository(target, {"url": "", "key": ""})


def has_packages(target: Installation, embedded: dict) -> bool:
    stamp = target.path(STAMP)
    return stamp.is_file() and stamp.read_text() == embedded["stamp"]


def install_packages(target: Installation, embedded: dict) -> None:
    """The embedded exporter's Python packages, from an archive or from an index. The old ones stay until all are there."""
    folder, new = target.path(PROGRAM + "/packages"), target.path(PROGRAM + "/packages.new")
    target.done.append("install Python packages into %s" % folder)
    if target.check:
        return
    if new.exists():
        shutil.rmtree(str(new))
    new.mkdir(mode=0o755, parents=True)
    if embedded["source"] == "index":
        requirements = new / "requirements.txt"
        requirements.write_text(embedded["requirements"])
        index = ["--index-url", embedded["index_url"]] if embedded["index_url"] else []
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        run([*command, *index, "--target", str(new), "--requirement", str(requirements)])
    else:
        with zipfile.ZipFile(embedded["archive"]) as archive:
            archive.extractall(str(new))
        # So that a start does not compile them each time: the service cannot write there.
        run([sys.executable, "-m", "compileall", "-q", "-j", "1", str(new)])
    (new / Path(STAMP).name).write_text(embedded["stamp"])
    if folder.exists():
        shutil.rmtree(str(folder))
    new.replace(folder)


# --- the whole ----------------------------------------------------------------------------------


def install(target: Installation, bundle: dict) -> None:
    # Whatever name Ansible found it by, it is one interpreter, and the unit's does not change with the name.
    python = os.path.realpath(sys.executable)
    files = {
        path: (entry["content"].replace("@python@", python).encode(), int(entry["mode"], 8))
        for path, entry in bundle["files"].items()
    }
    if bundle["web_config"] or bundle["users"]:
        files[WEB_CONFIG] = (web_config(target, bundle).encode(), 0o600)
    for path in sorted(set(files) - set(UNIT_FILES)):
        target.write(path, *files[path])
    units = [target.remove(path) for path in UNIT_FILES if path not in files]
    units += [target.write(path, *files[path]) for path in UNIT_FILES if path in files]
    for folder in (CONFIG, PROGRAM):
        remove_strangers(target, folder, set(files), bool(bundle["embedded"]))
    for path in bundle["directories"]:
        if not target.path(path).is_dir():
            target.done.append("make %s" % target.path(path))
            if not target.check:
                target.path(path).mkdir(mode=0o755, parents=True)
    if not target.booted:
        return
    if any(units):
        target.systemctl("daemon-reload")
    # A quadlet's unit is enabled by what makes it.
    if UNIT_FILES[0] in files and output(["systemctl", "is-enabled", UNIT])[1].strip() != "enabled":
        target.systemctl("enable", "--quiet", UNIT)
    if target.done or output(["systemctl", "is-active", UNIT])[0] or certificate_is_old(bundle):
        target.systemctl("restart", UNIT)


def remove_strangers(target: Installation, folder: str, wanted: set, embedded: bool) -> None:
    """Files of former settings in the directories that are the role's own."""
    top = target.path(folder)
    for path in sorted(top.rglob("*")) if top.is_dir() else ():
        relative = str(path.relative_to(target.root))
        if path.is_dir() or relative in wanted or "__pycache__" in path.parts:
            continue
        if relative.startswith(PROGRAM + "/packages") and embedded:
            continue
        target.remove(relative)
    if folder == PROGRAM and not any(path.startswith(PROGRAM) for path in wanted):
        target.remove(PROGRAM)


def mask(target: Installation, units: list[str]) -> None:
    """Units that packages bring, ahead of them: they would listen on all addresses as soon as they are installed."""
    for unit in units:
        path = target.path("%s/%s" % (UNITS, unit))
        if path.is_symlink() and os.readlink(str(path)) == "/dev/null":
            continue
        target.done.append("mask %s" % unit)
        if target.check:
            continue
        if target.booted:
            output(["systemctl", "stop", unit])
        if path.exists() or path.is_symlink():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/null")
        if target.booted:
            run(["systemctl", "daemon-reload"])


def uninstall(target: Installation, bundle: dict) -> None:
    there = [path for path in UNIT_FILES if target.path(path).exists()]
    if there and target.booted:
        if UNIT_FILES[0] in there:
            target.systemctl("disable", "--quiet", "--now", UNIT)
        else:
            target.systemctl("stop", UNIT)
    for path in (*UNIT_FILES, CONFIG, PROGRAM, *STATE):
        target.remove(path)
    for folder in (str(Path(CONFIG).parent), *bundle["directories"]):
        target.prune(folder)
    take_away(target, bundle["packages"])
    for unit in bundle["masked"]:
        path = target.path("%s/%s" % (UNITS, unit))
        if path.is_symlink() and os.readlink(str(path)) == "/dev/null":
            target.remove(str(path.relative_to(target.root)))
    if there and target.booted:
        target.systemctl("daemon-reload")


# --- is it well? --------------------------------------------------------------------------------


def pem_certificate(path: str) -> bytes:
    """The first one of a file, as the server shows it."""
    text = Path(path).read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return ssl.PEM_cert_to_DER_cert(first)


def scrape(health: dict, user: str | None) -> tuple[int, str, bytes]:
    """Status, body, and the certificate that was shown. Whose it is, is compared, as its name need not be this address's."""
    if health["certificate"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(health["address"], health["port"], timeout=20, context=context)
    else:
        connection = http.client.HTTPConnection(health["address"], health["port"], timeout=20)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True) if health["certificate"] else b""
        headers = {}
        if user is not None:
            said = "%s:%s" % (user, health["users"][user])
            headers["Authorization"] = "Basic " + base64.b64encode(said.encode()).decode()
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), shown
    finally:
        connection.close()


def certificate_is_old(bundle: dict) -> bool:
    """Whether a running service still shows another one than is there: it was renewed."""
    health = bundle["health"]
    if not health or not health["certificate"]:
        return False
    try:
        return scrape(health, None)[2] != pem_certificate(health["certificate"])
    except (OSError, ValueError, http.client.HTTPException):
        return False


def problem(health: dict) -> str:
    """What a scrape shows to be wrong, or nothing."""
    where = "%s port %d" % (health["address"], health["port"])
    try:
        if health["users"]:
            status = scrape(health, None)[0]
            if status != 401:
                return "%s answers without a password with status %d, which should be 401" % (where, status)
        status, body, shown = scrape(health, sorted(health["users"])[0] if health["users"] else None)
        if health["certificate"] and shown != pem_certificate(health["certificate"]):
            return "%s shows another certificate than %s" % (where, health["certificate"])
    except (OSError, ValueError, http.client.HTTPException) as error:
        return "%s does not answer: %s" % (where, error)
    if status != 200:
        return "%s answers with status %d" % (where, status)
    if not SAMPLE.search(body):
        return "%s answers, but there is no sample of a GPU in it" % where
    return ""


def check_health(health: dict) -> None:
    deadline = time.monotonic() + health["timeout"]
    while True:
        wrong = problem(health)
        if not wrong:
            return
        if time.monotonic() > deadline:
            sys.exit("the exporter is not well: %s.%s" % (wrong, journal()))
        time.sleep(0.3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only say what would change")
    parser.add_argument("--root", type=Path, default=Path("/"), help="install below this directory")
    options = parser.parse_args()
    os.umask(0o022)
    bundle = json.load(sys.stdin)
    target = Installation(options.root, options.check)
    archive = ""
    if bundle["state"] == "absent":
        uninstall(target, bundle)
    else:
        embedded = bundle["embedded"]
        if embedded and not has_packages(target, embedded):
            if embedded["source"] == "index" or embedded["archive"] or target.check:
                install_packages(target, embedded)
            else:
                archive = platform.machine()
        if not archive:
            mask(target, bundle["masked"])
            bring(target, bundle)
            install(target, bundle)
            if bundle["health"] and target.booted and not target.check:
                check_health(bundle["health"])
    print(json.dumps({"changed": bool(target.done), "done": target.done, "archive": archive}))
    return EXIT_ARCHIVE if archive else 0


if __name__ == "__main__":
    sys.exit(main())
