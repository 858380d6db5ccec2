# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run NVML clients on all models with all commands, and list what is missing.

accepted.yml lists the accepted missing values. A host has three GPUs of a model. The third GPU is in MIG mode with
one instance if both the model and the client support MIG. A finding is one value or action that failed: a field that is
N/A, an error, an exit status, or a missing line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Callable, Iterator
from xml.etree import ElementTree

import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import Model
from tests.clients import client_archive

HERE = Path(__file__).resolve().parent
CLIENTS = yaml.safe_load((HERE / "clients.yml").read_text(encoding="utf-8"))["clients"]
ACCEPTED = yaml.safe_load((HERE / "accepted.yml").read_text(encoding="utf-8"))["accepted"]

#: A timeout in seconds. Every client ends long before.
SECONDS = 20
#: Index of a host's third GPU.
PARTITIONED = 2

#: Runs a program with a driver's files in its own mount namespace.
WITH_DRIVER_FILES = ["unshare", "--mount", "--propagation", "private",
                     "sh", "-c", 'gpusim kernel-files 2>/dev/null; exec "$@"', "-"]  # fmt: skip

#: Texts that nvidia-smi prints if it has no value.
NO_VALUE = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Unknown|ERR!|Insufficient Permissions|GPU access.*|"
                      r"Requested functionality has been deprecated|Function Not Found|Not Found|Internal.*)\]?$")  # fmt: skip
NO_SUCCESS = re.compile(
    r"ERR!|unable|failed|error:|unknown error|invalid|internal|not supported|warning", re.IGNORECASE
)

#: A line that explains a letter of a table, which is not a value.
LEGEND = re.compile(r"\s*\w+\s+= ")

COMMANDS = """
-i 2 -mig 1
mig -i 2 -cgi {profile}:{start} -C
mig -i 2 -cgi {profile} -C
-L
(table)
-q -x
(every field)
(every remapped row)
(every retired page)
-q -d SUPPORTED_CLOCKS
topo -m
topo -p2p r
topo -p2p n
topo -c 0
topo -C -i 0
topo -M -i 0
nvlink -s
nvlink -c
nvlink -e
mig -lgip
mig -lgipp
mig -lgi
mig -lcip
mig -lci
compute-policy -l
pmon -c 1
dmon -c 1
c2c -s
mig -i 2 -dci
mig -i 2 -dgi
mig -i 2 -cgi {profile_name} -C
mig -i 2 -dci
mig -i 2 -dgi
-i 2 -mig 0
-i 0 -pm 1
-i 0 -c 3
-i 0 -pl {power}
-i 0 -lgc 300,{graphics}
-i 0 -rgc
-i 0 -lmc {memory}
-i 0 -rmc
-i 0 -ac {memory},{graphics}
-i 0 -rac
compute-policy -i 0 --set-timeslice={timeslice}
""".strip().splitlines()


@dataclass(frozen=True)
class Finding:
    """A value that a client could not show.

    `gpu` is "plain", "mig", or "" for the whole output.
    """

    client: str
    model: str
    command: str
    gpu: str
    text: str

    def __str__(self) -> str:
        return f"{self.client} | {self.model} | {self.command} | {self.gpu} | {self.text}"


class Client:
    """A real client: its name, its version and its commands."""

    def __init__(self, entry: dict) -> None:
        self.entry, self.kind, self.version = entry, entry["kind"], str(entry["version"])
        self.name = f"{self.kind} {self.version}"
        self.number = tuple(int(part) for part in self.version.split("."))
        self.folder: Path | None = None

    def fetch(self) -> None:
        """Unpack the client below .cache.

        Raise client_archive.NotOffered if it is missing.
        """
        if "packages" in self.entry:
            self.folder = client_archive.unpack([{"version": self.version, **p} for p in self.entry["packages"]])
        elif "requirement" in self.entry:
            self.folder = client_archive.install(f"{self.entry['requirement']}=={self.version}")
        for path, text in self.entry.get("files", {}).items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text.replace("{folder}", str(self.folder)))
        for path, target in self.entry.get("links", {}).items():
            (self.folder / path).unlink(missing_ok=True)
            (self.folder / path).symlink_to(target)

    def findings(self, host, model: Model) -> Iterator[Finding]:
        """Yield this client's findings for a host with three GPUs of a model."""
        look = {"nvidia-smi": _nvidia_smi}.get(self.kind, _python if "module" in self.entry else _terminal)
        for command, gpu, text in look(self, host, model):
            yield Finding(self.name, model.key, command, gpu, text)


def accepting(finding: Finding, model: Model, rules: list[dict] = ACCEPTED) -> dict | None:
    """Return the table entry that accepts a finding, or None."""
    tags = {model.key, model.architecture, "mig" if model.mig_capable else "no mig",
            "nvlink" if model.nvlink_links else "no nvlink", "c2c" if model.c2c_links else "no c2c"}  # fmt: skip
    for rule in rules:
        if (
            any(_version_in(finding.client, pattern) for pattern in rule["clients"])
            and (not rule.get("models") or tags & set(rule["models"]))
            and (not rule.get("unknown") or any(_is_unknown(model, field) for field in rule["unknown"]))
            and rule.get("gpu", finding.gpu) == finding.gpu
            and fnmatch(finding.command, rule["command"])
            and any(re.fullmatch(pattern, finding.text) for pattern in rule["findings"])
        ):
            return rule
    return None


def _is_unknown(model: Model, field: str) -> bool:
    """Return whether a model file's field, for example `inforom.image`, is null."""
    name, _, key = field.partition(".")
    value = getattr(model, name)
    return (value.get(key) if key else value) is None


def _version_in(client: str, pattern: str) -> bool:
    """Return whether a client matches a pattern.

    A pattern is a name such as `gpustat`, or a range of branches such as `nvidia-smi 525..550`.
    """
    kind, _, branches = pattern.rpartition(" ") if re.search(r" [\d.]+$", pattern) else (pattern, "", "")
    its_kind, its_version = client.rsplit(" ", 1)
    if its_kind != kind:
        return False
    first, _, last = branches.partition("..")
    branch = int(its_version.split(".")[0])
    return not branches or int(first) <= branch <= int(last or first)


# --- nvidia-smi -------------------------------------------------------------------------------------------------------

MIG_SINCE = 450


def _nvidia_smi(client: Client, host, model: Model) -> Iterator[tuple[str, str, str]]:
    (program,) = client.folder.glob("usr/lib/nvidia/*/nvidia-smi")
    mig = model.mig_capable and client.number[0] >= MIG_SINCE
    words = _parameters(model)
    created = False
    for line in COMMANDS:
        if not mig and (line.startswith("mig ") or "-mig " in line):
            continue
        if line == "mig -i 2 -cgi {profile} -C" and created:
            # Skip versions that do not know placements.
            continue
        if model.nvlink_links and line in client.entry.get("endless", []):
            yield line, "", "not run: it does not end"
            continue
        command = line.format(**words)
        arguments = command.split()
        show = None
        if line == "(table)":
            arguments = []
        elif line.startswith("(every"):
            option = {"(every field)": "gpu", "(every remapped row)": "remapped-rows"}.get(line, "retired-pages")
            fields = _fields(str(program), host, option)
            if not fields:
                continue
            arguments = [f"--query-{option}={','.join(fields)}", "--format=csv,noheader"]
            show = lambda output, fields=fields: _csv(output, fields)  # noqa: E731
        elif line == "-q -x":
            show = _xml
        status, output = _run(host, [str(program), *arguments])
        if "is not recognized" in output or "Invalid combination of input arguments" in output:
            # This release does not have the command.
            continue
        created = created or (line.startswith("mig -i 2 -cgi") and status == 0)
        if status != 0:
            yield line, "", f"exit {status}: {_general(_last_line(output))}"
        elif show:
            yield from ((line, gpu if mig else "plain", text) for gpu, text in show(output))
        else:
            bad = dict.fromkeys(
                _general(said) for said in output.splitlines() if NO_SUCCESS.search(said) and not LEGEND.match(said)
            )
            yield from ((line, "", said) for said in bad)
            missing = EXPECTED.get(line)
            if missing:
                yield from ((line, "", f"missing: {what}") for what in missing(output, host, model, created and mig))


def _parameters(model: Model) -> dict[str, object]:
    words: dict[str, object] = {
        "power": int(model.power_watts["max"] or model.power_watts["default"]),
        "graphics": model.clocks_mhz["graphics"],
        "memory": model.clocks_mhz["memory"],
        "timeslice": 1,
    }
    if model.mig_capable:
        profile = model.profiles[0]
        words.update(profile=profile.profile_id, start=profile.placement_starts[-1], profile_name=profile.name)
    return words


def _fields(program: str, host, option: str) -> list[str]:
    """Return all field names in a release's help."""
    _status, text = _run(host, [program, f"--help-query-{option}"])
    return list(dict.fromkeys(re.findall(r'^"([a-z][\w.]*)"', text, re.MULTILINE)))


def _xml(output: str) -> Iterator[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    try:
        log = ElementTree.fromstring(output)
    except ElementTree.ParseError as error:
        yield "", f"not XML: {error}"
        return
    for index, gpu in enumerate(log.findall("gpu")):
        stack = [(gpu, "")]
        while stack:
            element, path = stack.pop()
            for child in element:
                stack.append((child, f"{path}/{child.tag}".lstrip("/")))
            text = (element.text or "").strip()
            if not len(element) and NO_VALUE.match(text):
                found[("mig" if index == PARTITIONED else "plain", f"{path} = {text}")] = None
    yield from found


def _csv(output: str, fields: list[str]) -> Iterator[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for index, row in enumerate(output.strip().splitlines()):
        values = row.split(", ")
        if len(values) != len(fields):
            found[("plain", f"{len(values)} values of {len(fields)}")] = None
            continue
        for name, value in zip(fields, values):
            if NO_VALUE.match(value):
                found[("mig" if index == PARTITIONED else "plain", f"{name} = {value}")] = None
    yield from found


def _lists_all(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    for gpu in host.state()["gpus"]:
        if gpu["uuid"] not in output:
            yield "a GPU"
    if instance and output.count("MIG-") != 1:
        yield "the MIG device"


def _draws_all(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    rows = [line for line in output.splitlines() if line.startswith("GPU")]
    if len(rows) != 3:
        yield "a row"
    # At least two of the three GPUs are in different halves of the machine. If the model has NVLinks, each GPU divides
    # its links between the two other GPUs. Otherwise one of these is in the machine's other half.
    if not rows or not re.search(r"NV\d" if model.nvlink_links else "SYS", rows[0]):
        yield "the NVLinks" if model.nvlink_links else "the way between the GPUs"


def _lists_links(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    first = re.split(r"^GPU \d: ", output, flags=re.MULTILINE)[1:2]
    if model.nvlink_links and len(set(re.findall(r"Link (\d+)", "".join(first)))) != model.nvlink_links:
        yield "a link"


def _lists_c2c(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    if output.count("C2C Link") != 3 * model.c2c_links:
        yield "a link"


def _lists_instance(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    if instance and model.profiles[0].name not in output:
        yield "the instance"


def _lists_profiles(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    for profile in model.profiles:
        if not re.search(rf"(MIG {re.escape(profile.name)}|Profile ID\s+{profile.profile_id}) ", output):
            yield f"profile {profile.name}"


def _names_the_node(output: str, host, model: Model, instance: bool) -> Iterator[str]:
    node = host.state()["gpus"][0]["numa_node"]
    if not re.search(rf"NUMA IDs of closest \w+: {node}$", output, re.MULTILINE):
        yield "the NUMA node"


EXPECTED: dict[str, Callable] = {
    "-L": _lists_all,
    "topo -m": _draws_all,
    "topo -C -i 0": _names_the_node,
    "topo -M -i 0": _names_the_node,
    "nvlink -s": _lists_links,
    "c2c -s": _lists_c2c,
    "mig -lgip": _lists_profiles,
    "mig -lgipp": _lists_profiles,
    "mig -lgi": _lists_instance,
    "mig -lci": _lists_instance,
}


# --- other clients ----------------------------------------------------------------------------------------------------


def _python(client: Client, host, model: Model) -> Iterator[tuple[str, str, str]]:
    """Query a binding for every function, or run a Python program."""
    module = client.entry["module"]
    path = {"PYTHONPATH": str(client.folder)} if client.folder else {}
    if client.entry.get("arguments") is None:
        status, output = _run(host, [sys.executable, str(HERE / "walk_nvml.py"), module], path)
        if status != 0:
            yield module, "", f"exit {status}: {_general(_last_line(output))}"
            return
        for function, answers in json.loads(output).items():
            found = {"plain": answers["0"]}
            if model.mig_capable:
                found["mig"] = answers[str(PARTITIONED)]
            for gpu, answer in found.items():
                if answer != "answered":
                    yield module, gpu, f"{function} = {_general(answer)}"
        return
    command = " ".join([module, *client.entry["arguments"]])
    status, output = _run(host, [sys.executable, "-m", module, *client.entry["arguments"]], path)
    yield from _shown(command, status, output, model, client)


def _terminal(client: Client, host, model: Model) -> Iterator[tuple[str, str, str]]:
    """Run a program of a Debian package in a terminal."""
    (program,) = client.folder.glob(client.entry["program"])
    own = client.entry.get("libraries", [])
    libraries = [host.library, *client.folder.glob("usr/lib/x86_64-linux-gnu"), *(client.folder / name for name in own)]
    more = {"LD_LIBRARY_PATH": ":".join(map(str, libraries)), "TERM": "xterm"}
    start = str(program)
    if "loader" in client.entry:
        # The shell that starts the client uses this machine's C library.
        start = f"{client.folder / client.entry['loader']} --library-path {more.pop('LD_LIBRARY_PATH')} {program}"
    more.update({k: v.format(folder=client.folder) for k, v in client.entry.get("environment", {}).items()})
    arguments = client.entry.get("arguments", [])
    command = " ".join([program.name, *arguments])
    arguments = [argument.format(folder=client.folder) for argument in arguments]
    if client.entry.get("screen"):
        # The program draws until the test ends it. A busy machine may need more time for the first screen.
        for seconds in (3, 30):
            drawing = f"stty cols 160 rows 60; timeout --foreground {seconds} {start} {' '.join(arguments)} || true"
            status, output = _run(host, ["script", "-qec", drawing, "/dev/null"], more)
            output = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\([A-Z0-9]|[=>])", "", output)
            if not list(_missing(model, client, output)):
                break
    else:
        around = WITH_DRIVER_FILES if client.entry.get("driver_files") else []
        status, output = _run(host, [*around, *start.split(), *arguments], more)
    yield from _shown(command, status, output, model, client)


def _shown(command: str, status: int, output: str, model: Model, client: Client) -> Iterator[tuple[str, str, str]]:
    if status != 0:
        yield command, "", f"exit {status}: {_general(_last_line(output))}"
        return
    for wanted in _missing(model, client, output):
        yield command, "", f"missing: {wanted}"
    if "errors" in client.entry:
        for error in dict.fromkeys(re.findall(client.entry["errors"], output, re.MULTILINE)):
            yield command, "", _general(error)


def _missing(model: Model, client: Client, output: str) -> Iterator[str]:
    """Yield the patterns that the client should have printed but did not."""
    words = {"name": model.name.replace("NVIDIA ", ""), "count": "3"}
    mig = client.entry.get("shows_mig", []) if model.mig_capable else []
    for wanted in [*client.entry["shows"], *mig]:
        if not re.search(wanted.format(**{k: re.escape(v) for k, v in words.items()}), output):
            yield wanted


def _run(host, command: list[str], more: dict[str, str] | None = None) -> tuple[int, str]:
    environment = {**host.client_environment, **(more or {})}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return 124, (error.stdout or b"")[-1000:].decode(errors="replace") + "\ndoes not end"
    return done.returncode, done.stdout.decode(errors="replace")


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


def _general(text: str) -> str:
    """Return a line without identifiers or numbers, which differ between runs."""
    text = re.sub(r"(GPU|MIG)-[0-9a-f-]{36}", "UUID", text.strip())
    text = re.sub(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d", "BUS", text)
    return re.sub(r"\d+", "N", text)
