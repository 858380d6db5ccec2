# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a node's lines in Slurm's files on this host, or restore the former ones.

A record with the former lines is written before the first file. `confirm` removes these lines when the daemons have
accepted the files. So after an interruption, the record still has the lines that the daemons accepted last.
"""

from __future__ import annotations

import base64
import json
import tempfile
import zlib
from pathlib import Path
from typing import Any, Mapping, Sequence

from .. import durable
from ..errors import FleetError
from ..holders.slurm import NODE_NAME
from ..plan.transaction import locked
from ..printable import printable
from ..processes.command import TimeoutExpired, run_tool
from . import conf, config, record

LOCK_SECONDS = 60
# slurmd waits 19 s for a device node that does not exist.
TEST_SECONDS = 60
_MOST_BYTES = 16 << 20


class SlurmFilesError(FleetError):
    """Slurm's files cannot be read or written, or Slurm refuses them."""

    host_fault = True


class Files:
    """Slurm's files in a directory of this host."""

    def __init__(self, directory: str, node: str, state_directory: str) -> None:
        if not NODE_NAME.match(node):
            cure = "Set gpu_slurm_node to Slurm's name of the host (scontrol show nodes)."
            raise SlurmFilesError("gpu_slurm_node", "%r is not a valid name of a Slurm node" % node[:100], cure)
        self.directory, self.node = directory.rstrip("/"), node
        self.state_directory = Path(state_directory)
        self.record = record.path_of(state_directory, node)

    @property
    def exist(self) -> bool:
        """Return whether the host has slurm.conf. Configless nodes have none."""
        return Path(self.directory, conf.SLURM_CONF).exists()

    @property
    def interrupted(self) -> bool:
        """Return whether a change of the files is unconfirmed."""
        return bool(record.load(self.record)["pending"])

    def read(self) -> dict[str, str]:
        """Return the text of each existing file by its path."""
        found: dict[str, str] = {}
        for name in (conf.SLURM_CONF, conf.GRES_CONF, config.NODES, config.GRES):
            self._read("%s/%s" % (self.directory, name), found)
        return found

    def _read(self, path: str, found: dict[str, str]) -> None:
        if path in found:
            return
        try:
            if Path(path).stat().st_size > _MOST_BYTES:
                raise SlurmFilesError(path, "the file is larger than 16 MiB", "Check the file.")
            found[path] = Path(path).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return
        except OSError as error:
            raise SlurmFilesError(path, "it cannot be read: %s" % error, "Run as root (become: true).") from None
        for line in conf.lines_of(path, found[path]):
            inner = conf.included(self.directory, line)
            if inner:
                self._read(inner, found)

    def plan(self, request: config.Request) -> dict[str, Any]:
        """Return the pending change of the files as data. Nothing is changed."""
        if not self.exist:
            return {"exist": False, "changed": False, "problems": [], "notes": [], "interrupted": self.interrupted}
        files = self.read()
        edited = config.edit(files, self.directory, request)
        return {
            "exist": True,
            "changed": bool(self._differing(files, edited.texts)),
            "problems": [printable(str(problem)) for problem in edited.problems],
            "notes": [printable(note) for note in edited.notes],
            "restart": edited.new_types,
            "interrupted": self.interrupted,
            "candidate": packed(config.candidate(files, self.directory, edited)),
            "diff": self._diff(files, edited.texts),
        }

    def write(self, request: config.Request) -> dict[str, Any]:
        """Write the files. Raises SlurmFilesError if they are not prepared."""
        with self._locked():
            files = self.read()
            edited = config.edit(files, self.directory, request)
            if edited.problems:
                first = edited.problems[0]
                raise SlurmFilesError(first.where, first.problem, first.cure)
            differing = self._differing(files, edited.texts)
            if differing and record.load(self.record)["former"] is None:
                gres, rows = config.former_lines(files, self.directory, self.node)
                record.save(self.record, pending=True, former={"gres": gres, "lines": rows})
            self._write(edited.texts, differing)
            return {"changed": bool(differing), "diff": self._diff(files, edited.texts)}

    def restore(self, lines: Sequence[str] | None) -> dict[str, Any]:
        """Write the node's recorded lines. The record stays until `confirm`.

        `lines` names all device nodes of the host. If it is given, recorded lines with other device nodes are left out.
        """
        with self._locked():
            former = record.load(self.record)["former"]
            if former is None:
                return {"changed": False}
            files = self.read()
            rows = former["lines"]
            if lines:
                existing = _device_nodes(lines)
                rows = [row for row in rows if existing.issuperset(_device_nodes([row]))]
            texts = config.with_former(files, self.directory, self.node, former["gres"], rows)
            differing = self._differing(files, texts)
            self._write(texts, differing)
            return {"changed": bool(differing), "diff": self._diff(files, texts)}

    def begin(self, devices: Sequence[dict[str, str]]) -> dict[str, Any]:
        """Record this node's devices by Slurm's number.

        Running jobs hold devices by number. After a layout change, the driver no longer shows the former devices. If a
        run is interrupted then, the record tells the next run which jobs have lost a device.
        """
        with self._locked():
            record.save(self.record, pending=True, devices=list(devices))
            return {"changed": False}

    def confirm(self, devices: Sequence[dict[str, str]] | None) -> dict[str, Any]:
        """Record that the daemons use the files, with Slurm's current devices."""
        with self._locked():
            record.save(self.record, pending=False, former=None, devices=None if devices is None else list(devices))
            return {"changed": False}

    def _write(self, texts: Mapping[str, str], names: Sequence[str]) -> None:
        for name in names:
            path = Path(self.directory, name)
            durable.write_bytes(path, texts[name].encode(errors="surrogateescape"), 0o644)

    def _differing(self, files: dict[str, str], texts: Any) -> list[str]:
        # Write gres.conf first: slurmd ignores devices beyond the count in the node's line.
        return [
            name
            for name in (config.GRES, config.NODES)
            if files.get("%s/%s" % (self.directory, name), "") != texts[name]
        ]

    def _diff(self, files: dict[str, str], texts: Any) -> list[dict[str, str]]:
        found = []
        for name in self._differing(files, texts):
            path = "%s/%s" % (self.directory, name)
            before, after = (_shown(text) for text in (files.get(path, ""), texts[name]))
            found.append({"before_header": path, "after_header": path, "before": before, "after": after})
        return found

    def _locked(self) -> Any:
        return locked(str(self.state_directory / "slurm"), LOCK_SECONDS)


def packed(texts: dict[str, str]) -> str:
    """Return texts as one line that checks of results do not change."""
    data = json.dumps(texts).encode()
    return base64.b64encode(zlib.compress(data)).decode()


def unpacked(line: str) -> dict[str, str]:
    """Return the texts of `packed`. Raises SlurmFilesError if they are invalid."""
    try:
        reader = zlib.decompressobj()
        data = json.loads(reader.decompress(base64.b64decode(line, validate=True), _MOST_BYTES))
        texts = {name: text for name, text in data.items() if isinstance(text, str) and "/" not in name}
    except (ValueError, zlib.error, AttributeError):
        raise SlurmFilesError("candidate", "it is not a result of action: plan", "Run the plan again.") from None
    return texts


def _device_nodes(rows: Sequence[str]) -> set[str]:
    """Return the device nodes that lines of gres.conf name."""
    lines = [line for row in rows for line in conf.lines_of(conf.GRES_CONF, row)]
    return {path for line in lines for files in line.devices for path in files}


def _shown(text: str) -> str:
    return "".join(printable(row) + "\n" for row in text.splitlines())


def test(node: str, candidate: str, lines: Sequence[str] | None) -> None:
    """Let slurmd on this host read the files before the daemons use them.

    Raises SlurmFilesError with slurmd's message. `candidate` is a result of `Files.plan`. If `lines` is None, gres.conf
    still describes the former devices, so their number is not checked.
    """
    texts = unpacked(candidate)
    with tempfile.TemporaryDirectory(prefix="openfleet-slurm-") as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text, errors="surrogateescape")
        path = str(Path(folder, conf.SLURM_CONF))
        try:
            done = run_tool(["slurmd", "-G", "-N", node, "-f", path], timeout_seconds=TEST_SECONDS)
        except FileNotFoundError:
            raise SlurmFilesError("this host", "slurmd is not installed", "Install slurmd.") from None
        except TimeoutExpired:
            raise SlurmFilesError("this host", "slurmd -G did not end", "Check slurmd -G on the host.") from None
        messages = [
            line.partition(": ")[2].replace(folder + "/", "")
            for line in (done.stderr + done.stdout).splitlines()
            if "error: " in line or "fatal: " in line or "WARNING: " in line
        ]
    text = "; ".join(messages)
    if lines is not None and done.returncode == 0:
        devices = (done.stderr + done.stdout).count(": Gres Name=")
        if devices != len(lines):
            text = text or "it lists %d devices, and the node has %d lines" % (devices, len(lines))
        elif "WARNING: " not in text:
            return
    elif done.returncode == 0:
        return
    cure = "Fix the named file and line."
    raise SlurmFilesError("node %s" % node, "slurmd refuses the new files: %s" % printable(text[:1000]), cure)
