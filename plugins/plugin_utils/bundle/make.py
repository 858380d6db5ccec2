# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a bundle: read all indexes, fetch the files, and write the texts.

Repeat it at any time to complete or update the bundle.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

from .. import python_pins
from . import fetch, local, mirror, papers
from .model import BundleError, Item, Wants
from .wants import collect

#: Folders that only have files of the bundle. A file that is not needed was left by an earlier run.
FOLDERS = ("repositories", "files", "python", "collection")
#: The requirements, in the collection, of the plugin that gives leases to pods, and the minor versions of Python 3 that
#: it supports.
LEASE_REQUIREMENTS, LEASE_PYTHONS = "roles/gpu_kubernetes/files/dra-requirements.txt", range(9, 15)
_PARTIAL, _LOCK = ".partial", ".lock"
# Disk space in bytes that must stay free.
_SPARE_BYTES = 64 << 20


@dataclass
class Order:
    """A request for a bundle.

    `hosts` has each host's role variables, including defaults.
    """

    directory: Path
    hosts: Mapping[str, Mapping[str, Any]]
    catalogue: Mapping[str, Any]
    #: Root folder and version of the collection.
    root: Path
    version: str
    parts: Sequence[str] = ()
    #: Lines of a requirements file for the controller.
    requirements: Sequence[str] = ()
    pip_options: Sequence[str] = ()
    url: str = ""
    path: str = ""
    prune: bool = False
    check: bool = False


@dataclass
class Outcome:
    changed: bool = False
    fetched: list[Item] = field(default_factory=list)
    kept: int = 0
    old: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def make(order: Order, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """Make or update a bundle.

    Raises BundleError. The previous bundle then stays complete.
    """
    wants = collect(order.hosts, order.catalogue, order.parts)
    with tempfile.TemporaryDirectory(prefix="openfleet-bundle-") as name:
        if order.check:
            return _Making(order, wants, Path(name), say).run()
        order.directory.mkdir(parents=True, exist_ok=True)
        with (order.directory / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BundleError(
                    str(order.directory), "another run is making this bundle", "Wait until it ends, then run again."
                ) from None
            return _Making(order, wants, Path(name), say).run()


class _Making:
    def __init__(self, order: Order, wants: Wants, scratch: Path, say: Callable[[str], None]) -> None:
        self.order = order
        self.wants = wants
        self.scratch = scratch
        self.say = say
        self.bundle = order.directory
        self.fetcher = fetch.Fetcher(self.bundle / _PARTIAL, say)
        self.items: dict[str, Item] = {}
        self.outcome = Outcome()
        self.python: dict[str, Any] = {}
        self.nvml = ""
        #: False if the bundle's Python packages are unknown, because a dry run does not run pip.
        self.python_known = True
        try:
            self.before = json.loads((self.bundle / papers.MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.before = {}

    def run(self) -> Outcome:
        mirrors = []
        for source, asks in self.wants.repositories.items():
            self.say("reading the index of %s" % source.url)
            mirrors.append(mirror.read(source, asks, self.bundle, self.fetcher))
        # Add indexes after packages, and signed files last, so that an index never lists a missing package.
        self._add(item for repository in mirrors for item in repository.packages.values())
        self._add(item for repository in mirrors for item in repository.index)
        self._add(self._named(*named, hosts) for named, hosts in sorted(self.wants.files.items()))
        self._python()
        if "collection" in self.order.parts:
            self._add([local.collection(self.order.root, self.scratch / "collection", self.bundle)])
        self._nvml_wheel()
        self._fetch()
        self._old()
        self._write(mirrors)
        return self.outcome

    def _named(self, path: str, allowed: Sequence[str], what: str, hosts: set[str]) -> Item:
        """Return a file that the inventory names by path or URL.

        Raises BundleError if the file is missing or has a wrong checksum.
        """
        if "://" not in path:
            return local.named(path, allowed, what, hosts)
        previous = self.bundle / "files" / path.rpartition("/")[2]
        if any(fetch.has(previous, sha256) for sha256 in allowed):
            return local.named(str(previous), allowed, what, hosts)
        content = self.fetcher.small(path, "Check the address in the inventory.") or b""
        return local.fetched(path, content, allowed, what, hosts)

    def _add(self, items: Iterable[Item]) -> None:
        for item in items:
            first = self.items.setdefault(item.path, item)
            if first.sha256 != item.sha256:
                raise BundleError(
                    item.path,
                    "two different files have this path: from %s and from %s" % (first.origin, item.origin),
                    "Rename one of them.",
                )
            first.hosts |= item.hosts

    # -- Python --------------------------------------------------------------------------------------------------------

    def _python(self) -> None:
        options = tuple(self.order.pip_options)
        if "controller" in self.order.parts:
            text = "".join(line + "\n" for line in self.order.requirements)
            question = local.Question("the controller's packages", text, options)
            if not question.hashed:
                self.outcome.notes.append(
                    "the requirements of the controller have no hashes, so pip trusted its index: "
                    "set gpu_bundle_requirements to a file with hashes"
                )
            self._wheels("controller", question, "python/requirements.txt")
        for pin, hosts in sorted(self.wants.nvml.items(), key=lambda entry: str(entry[0])):
            name = "%s %s" % (pin.name, pin.version)
            question = local.Question("%s==%s" % (pin.name, pin.version), str(pin), options, frozenset(hosts))
            self._wheels(name, question, "")
        for architecture, hosts in sorted(self.wants.leases.items()):
            requirements = (self.order.root / LEASE_REQUIREMENTS).read_text(encoding="utf-8")
            for minor in LEASE_PYTHONS:
                name = "plugin for leases, Python 3.%d on %s" % (minor, architecture)
                chosen = ("--implementation=cp", "--python-version=3.%d" % minor)
                question = local.Question(
                    "the packages of the " + name,
                    requirements,
                    (*options, *chosen, "--platform=manylinux2014_%s" % architecture),
                    frozenset(hosts),
                )
                self._wheels(name, question, "")

    def _wheels(self, name: str, question: local.Question, requirements: str) -> None:
        """Fetch wheels with pip, unless an earlier run fetched all of them.

        An earlier run's wheels are used if the manifest records the same request. `requirements` is the path in the
        bundle of a requirements file with the wheels' hashes, which is then written. It may be empty.
        """
        asked = [*question.asked(), "for %s" % local.python_platform()]
        if question.options:
            # pip's options may contain URLs with passwords, so the manifest only has their hash.
            asked.append("options %s" % hashlib.sha256(repr(list(question.options)).encode()).hexdigest()[:16])
        items = local.recorded(self.before, name, asked, self.bundle)
        if items is None and self.order.check:
            self.outcome.notes.append("pip would fetch %s" % question.name)
            self.python_known = False
            self.outcome.changed = True
            return
        if items is None:
            self.say("fetching %s with pip" % question.name)
            items = local.wheels(question, self.scratch / name.replace(" ", "-"), "Python package")
            if requirements:
                # With these hashes, the air-gapped site verifies each file.
                pins = python_pins.of_files((item.path.rpartition("/")[2], item.sha256) for item in items)
                content = "".join(map(str, pins)).encode()
                items.append(mirror.text_file(requirements, "requirements of the controller", content))
        self._add(items)
        self.python[name] = {
            "asked": asked,
            "for": local.python_platform(),
            "files": sorted(item.path for item in items),
        }

    def _nvml_wheel(self) -> None:
        """Set the wheel with which hosts install pynvml, if all need the same one."""
        names = [item.path for item in self.items.values() if item.what == "nvidia-ml-py"]
        names += [
            path for name in self.python if name.startswith("nvidia-ml-py ") for path in self.python[name]["files"]
        ]
        if len(names) == 1:
            self.nvml = names[0]
        elif names:
            self.outcome.notes.append(
                "hosts need different versions of nvidia-ml-py: set gpu_layout_nvml_wheel for each"
            )

    # -- Changes -------------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        missing = [item for item in self.items.values() if not fetch.has(self.bundle / item.path, item.sha256)]
        self.outcome.kept = len(self.items) - len(missing)
        self.outcome.fetched = missing
        self.outcome.changed = self.outcome.changed or bool(missing)
        if self.order.check or not missing:
            return
        needed = sum(item.size for item in missing) + _SPARE_BYTES
        free = shutil.disk_usage(self.bundle).free
        if free < needed:
            raise BundleError(
                str(self.bundle),
                "the disk has %s free, but needs %s" % (fetch.readable(free), fetch.readable(needed)),
                "Free space, or set gpu_bundle_dir to another disk.",
            )
        for number, item in enumerate(missing, 1):
            if item.content is not None:
                fetch.write(self.bundle / item.path, item.content)
                continue
            self.say("%d of %d: %s (%s)" % (number, len(missing), item.path, fetch.readable(item.size)))
            self.fetcher.file(item, self.bundle / item.path)
        shutil.rmtree(str(self.bundle / _PARTIAL), ignore_errors=True)

    def _old(self) -> None:
        present = [
            path.relative_to(self.bundle).as_posix()
            for folder in FOLDERS
            for path in sorted((self.bundle / folder).rglob("*"))
            if path.is_file() or path.is_symlink()
        ]
        old = [
            path for path in present if path not in self.items and (self.python_known or not path.startswith("python/"))
        ]
        if self.order.prune:
            self.outcome.removed = old
            self.outcome.changed = self.outcome.changed or bool(old)
        else:
            self.outcome.old = old
        if self.order.prune and not self.order.check:
            for path in old:
                (self.bundle / path).unlink()

    def _write(self, mirrors: Sequence[mirror.Mirror]) -> None:
        items = list(self.items.values())
        manifest = papers.manifest(self.order.version, items, mirrors, self.wants, self.python, self.outcome.old)
        named = json.loads(manifest)["needed_from_the_distribution"]
        self.outcome.elsewhere = ["%s (%s)" % (entry["name"], entry["on"]) for entry in named]
        if self.order.check:
            return
        path = self.order.path or str(self.bundle.resolve())
        texts = {
            papers.VARIABLES: papers.variables(path, self.order.url, self.wants, items, self.nvml),
            papers.README: papers.readme(items, mirrors, len(named), self.python),
            papers.SUMS: papers.sums(items),
            papers.MANIFEST: manifest,
        }
        for name, text in texts.items():
            self.outcome.changed = fetch.write(self.bundle / name, text.encode()) or self.outcome.changed
