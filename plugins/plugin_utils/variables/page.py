# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/variables.md from the specs of roles and playbooks."""

from __future__ import annotations

import json
import re
from typing import Any, Mapping

from . import known

_HEAD = """# Variables

Every variable of the collection's roles and playbooks. This page is made from their argument specs by `make variables`.

`site.yml` and `reset.yml` check all of them on every host before anything changes. `reset.yml` does not read `gpu_layout`, and so
does not check its value. `audit.yml`, `rightsize.yml`, `bundle.yml`, `export.yml`, `check_gpu.yml` and `accept.yml` check theirs:

- **Values**: type, choices, bounds and form. A value that is made of facts is checked later, by the role that gathers them.
- **Names**: a misspelt name is an error, and a name that only looks like the collection's is a warning:

| name | example | what happens |
|---|---|---|
| begins as the collection's names do, and resembles one of them | `gpu_site_wave` | error |
| begins as they do, and resembles none | `gpu_layout_h100` | warning |
| differs from exactly one of them by one typing error (below) | `gpu_layuot_on_busy` | error |
| lacks a word of exactly one of them, or has another word instead (below) | `gpu_on_busy` | error |
| resembles one of them otherwise, and begins with `gpu`, `nvidia`, `dcgm` or `container_t` | `gpu_layouts` | warning |
| any other | `my_gpu_layout` | nothing |

A typing error is one of these, in one word of a name:

- Two neighbouring letters are exchanged.
- One letter is missing, wrong or too much (`nvidia_drver_version`). The word's first and last letter are right, it has five
  letters or more, and the name 15 characters or more. So `nvidia_drivers_version` and `gpu_train_timeout` are names of yours.

A missing or wrong word is an error in these cases:

- A word is missing, and the name still has three words (`layout_on_busy`), or begins with `gpu`, `vgpu`, `nvidia` or `dcgm`
  (`gpu_waves`).
- One word of four or more is wrong (`gpu_mig_on_busy`). The first word is one of these four, or `container`.

It is a warning instead if the template of another variable reads the name: then the name is yours.

```text
h100-03: gpu_layout_on_busy: unknown value "drian". Did you mean drain? It is one of fail, wait, drain, force.
h100-03: gpu_site_wave: unknown variable. Did you mean gpu_site_waves? If it is yours, list it in gpu_site_own_variables.
Nothing was changed.
```

Name variables of your own otherwise (`site_h100_layout`), or list them, by globs:

```yaml
gpu_site_own_variables: [gpu_layout_h100*]
```
"""
_MARK = re.compile(r"\b[CVOBI]\((.*?)\)")


def page() -> str:
    """Return the page's text."""
    parts = [_HEAD]
    for owner in known.owners():
        parts.append("\n## %s\n\n| Variable | Type | Default | Meaning |\n|---|---|---|---|\n" % _title(owner))
        parts += [_row(name, option) for name, option in known.of_owner(owner).items()]
    return "".join(parts)


def _title(owner: str) -> str:
    return "Playbook %s" % owner if owner.endswith(".yml") else "Role [%s](../roles/%s/README.md)" % (owner, owner)


def _row(name: str, option: Mapping[str, Any]) -> str:
    kind = option.get("type", "str")
    if kind == "list":
        kind = "list of %s" % option.get("elements", "raw")
    if option.get("choices"):
        kind = "%s: %s" % (kind, ", ".join("`%s`" % choice for choice in option["choices"]))
    default = "required" if option.get("required") else _value(option["default"]) if "default" in option else "none"
    text = option.get("description", "")
    meaning = " ".join(str(text if isinstance(text, str) else text[0]).split())
    cells = ("`%s`" % name, kind, default, _MARK.sub(_code, meaning))
    return "| %s |\n" % " | ".join(cell.replace("|", "\\|") for cell in cells)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "`%s`" % text if text else "empty"


def _code(match: re.Match[str]) -> str:
    return "`%s`" % match.group(1)
