# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the sources of the command gpu-layout on the controller.

In a checkout, `python3 -m plugins.module_utils.install.build_command FILE` builds the command together with pynvml as
one file, for hosts without Ansible.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Mapping

from .archive import MAIN, archive
from .command_file import MODE, origin

# Patterns for the command's files below module_utils. They include the modules `layout` and `layout_boot`.
PATTERNS = (
    *("*.py", "models/*.json", "techniques/*.py", "techniques/*/*.py"),
    *(
        "%s/*.py" % name
        for name in ("cdi", "change", "cli", "export", "holders", "keep", "layout", "leases", "lease_service")
    ),
    *("%s/*.py" % name for name in ("metrics", "plan", "processes", "vendors", "vendors/*", "vendors/*/*")),
    *("install/%s.py" % name for name in ("__init__", "archive", "command_file", "files", "layout_boot", "sources")),
    *("slurm/%s.py" % name for name in ("__init__", "conf", "device_nodes", "mig_devices", "task_devices")),
)
# Files that match the patterns but that the command does not need.
LEFT_OUT = ("service_module.py",)


def read_sources() -> dict[str, str]:
    """Return the command's sources by their path below module_utils."""
    utils = Path(__file__).resolve().parents[1]
    files = [file for pattern in PATTERNS for file in utils.glob(pattern) if file.name not in LEFT_OUT]
    return {str(file.relative_to(utils)): file.read_text(encoding="utf-8") for file in files}


def sources_digest(sources: Mapping[str, str]) -> str:
    """Return the digest of a set of sources."""
    parts = [MAIN, *(part for item in sorted(sources.items()) for part in item)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def build(file: Path) -> None:
    """Write the command, together with pynvml, as one file."""
    import pynvml

    binding = Path(pynvml.__file__).read_text(encoding="utf-8")
    sources = dict(read_sources(), **{"../pynvml.py": binding})
    file.write_bytes(archive(sources, origin(sources_digest(sources)), "/usr/bin/env python3"))
    file.chmod(MODE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the command gpu-layout as one file that includes pynvml.")
    parser.add_argument("file", type=Path, metavar="FILE")
    build(parser.parse_args().file)


if __name__ == "__main__":
    main()
