# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files that are arguments of gpu-layout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

from ..errors import FleetError


def read_data(path: str) -> Any:
    """Return the data in a JSON or YAML file. `-` is standard input.

    Raises FleetError with the file's name.
    """
    return _parse(path, _text(path), _one_document)


def read_configuration(path: str, key: str) -> Any:
    """Return the mapping with this key in a file.

    The mapping is a document in the file, or a text in a Kubernetes ConfigMap. If no mapping has the key, the first
    document is returned. Raises FleetError like `read_data`, and also if several mappings have the key.
    """
    documents = _parse(path, _text(path), _all_documents)
    found: dict[str, Any] = {}
    for number, document in enumerate(documents):
        for place, data in _mappings(path, "document %d" % (number + 1), document):
            if key in data:
                found[place] = data
    if len(found) > 1:
        raise FleetError(path, "%s have %s" % (" and ".join(found), key), "Keep one of them in the file.")
    return next(iter(found.values()), documents[0] if documents else None)


def _mappings(path: str, place: str, document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, mapping) for each mapping in a document.

    The mappings are the document itself and the texts in a ConfigMap.
    """
    if not isinstance(document, dict):
        return
    if document.get("kind") in ("List", "ConfigMapList") and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"]):
            yield from _mappings(path, "%s, items[%d]" % (place, number), item)
    elif document.get("kind") == "ConfigMap" and isinstance(document.get("data"), dict):
        for name, text in document["data"].items():
            if isinstance(text, str) and not str(name).endswith((".sh", ".py")):
                for data in _parse("%s: %s, data.%s" % (path, place, name), text, _all_documents):
                    if isinstance(data, dict):
                        yield "%s, data.%s" % (place, name), data
    else:
        yield place, document


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FleetError(path, "there is no such file", "Give a file. The role gpu_layout writes the host's.") from None
    except UnicodeDecodeError as error:
        raise FleetError(path, "it is not a text file: %s" % error, "Write it as UTF-8.") from None


def _parse(path: str, text: str, documents: Callable[[Any, str], Any]) -> Any:
    """Return the data in a text.

    `documents` parses a text that is YAML and not JSON.
    """
    try:
        data = json.loads(text)
        return [data] if documents is _all_documents else data
    except ValueError as error:
        # JSON is also YAML. The first character decides whether an invalid file is reported as JSON.
        if text.lstrip()[:1] in ("{", "["):
            raise FleetError(path, "it is not valid JSON: %s" % error, "Fix the file.") from None
    try:
        import yaml
    except ImportError:
        raise FleetError(
            path,
            "it is not JSON, and this Python (%s) has no PyYAML to read it as YAML" % sys.executable,
            "Write it as JSON, or install the package python3-yaml.",
        ) from None
    try:
        return documents(yaml, text)
    except yaml.YAMLError as error:
        raise FleetError(path, "it is not valid YAML: %s" % " ".join(str(error).split()), "Fix the file.") from None


def _one_document(yaml: Any, text: str) -> Any:
    return yaml.safe_load(text)


def _all_documents(yaml: Any, text: str) -> Any:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def read_layout(path: str) -> Any:
    """Return the value of gpu_layout.

    The file contains the value itself, or a mapping with this key.
    """
    data = read_data(path)
    if isinstance(data, dict) and "gpu_layout" in data:
        return data["gpu_layout"]
    return data
