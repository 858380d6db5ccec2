# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the files that are given to gpu-layout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..errors import FleetError


def read_data(path: str) -> Any:
    """What a JSON or YAML file holds; `-` is standard input. Raises FleetError naming the file."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FleetError(
            path, "there is no such file", "Name one; the role gpu_layout writes the host's own."
        ) from None
    except UnicodeDecodeError as error:
        raise FleetError(path, "it is no text: %s" % error, "Write it as UTF-8.") from None
    try:
        return json.loads(text)
    except ValueError as error:
        # JSON is YAML too, so the first character says what a broken file was to be.
        if text.lstrip()[:1] in ("{", "["):
            raise FleetError(path, "it is not valid JSON: %s" % error, "Mend it there.") from None
    return _yaml(path, text)


def _yaml(path: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise FleetError(
            path,
            "it is not JSON, and this Python (%s) has no PyYAML to read it as YAML" % sys.executable,
            "Write it as JSON, or install the package python3-yaml.",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise FleetError(path, "it is not valid YAML: %s" % " ".join(str(error).split()), "Mend it there.") from None


def read_layout(path: str) -> Any:
    """The value of gpu_layout: the file holds it alone, or under that key."""
    data = read_data(path)
    if isinstance(data, dict) and "gpu_layout" in data:
        return data["gpu_layout"]
    return data
