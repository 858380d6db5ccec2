# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hide passwords after short options of known programs.

For mysql and sshpass, ``-p`` precedes a password. For ssh and `docker run`, it precedes a port, which should stay
visible. The program is the first word of a command, also inside scripts. After wrappers such as sudo and env, it is the
first known word.
"""

from __future__ import annotations

import re
from typing import Iterator, Sequence

#: Text that replaces a secret.
HIDDEN = "***"

_CONTAINERS = ("docker", "podman", "nerdctl", "buildah", "skopeo", "helm", "oras", "oc", "az")
_MYSQL = ("", "admin", "check", "dump", "import", "pump", "show", "slap", "sh", "_upgrade")
_MARIADB = ("", "-admin", "-check", "-dump", "-import", "-show", "-slap", "-upgrade")
#: The option whose value is a password, by program. mysql reads a separate word after ``-p`` as the name of a database.
#: The word may still be a mistyped password (https://dev.mysql.com/doc/refman/8.4/en/connecting.html).
_PASSWORD_OPTION = {
    **{"mysql" + name: "-p" for name in _MYSQL},
    **{"mariadb" + name: "-p" for name in _MARIADB},
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport"), "-p"),
    **dict.fromkeys(("sshpass", "mycli", "twine", "7z", "7za", "7zr"), "-p"),
    **dict.fromkeys(_CONTAINERS, "-p"),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldappasswd", "ldapwhoami"), "-w"),
    **dict.fromkeys(("sqlcmd", "bcp", "zip", "unzip", "mosquitto_pub", "mosquitto_sub"), "-P"),
    "redis-cli": "-a",
}
#: Programs for which -p is a password in one subcommand only. In `docker run`, -p is a port.
_ONLY_AT = dict.fromkeys(_CONTAINERS, "login")
#: Options whose value is ``user:password``. Source: https://curl.se/docs/manpage.html#-u
_PAIR_OPTION = {"curl": ("-u", "--user", "-U", "--proxy-user")}
#: The former format of a wandb key, which is an argument without an option. Source:
#: https://docs.wandb.ai/models/ref/cli/wandb-login
_WANDB_KEY = re.compile(r"[0-9a-f]{40}")
#: Wrappers that run another program, whose name follows their options and assignments.
_RUNS_ANOTHER = re.compile(
    r"sudo|doas|env|exec|command|time|timeout|nice|ionice|nohup|setsid|stdbuf|taskset|numactl|chrt|srun|xargs"
)
#: Wrappers' options that take a user name, which may equal the name of a known program.
_USER_OPTIONS = ("-u", "-g", "-U", "--user", "--group")
_INTERPRETER = re.compile(r"python[\d.]*|perl|ruby")
_INTERPRETER_VALUES = ("-W", "-X")
_KNOWN = {*_PASSWORD_OPTION, *_PAIR_OPTION, "wandb"}

#: A word in a script. Other characters separate words or commands.
_WORD = re.compile(r"""(?:[^\s;|&()<>'"`]|'[^']*'|"[^"]*")+|['"]""")
_NEXT_COMMAND = re.compile(r"[;|&()`\n]")
#: Maximum nesting depth of scripts inside scripts.
_DEEPEST = 4


def without_passwords(words: Sequence[str]) -> list[str]:
    """Return the arguments with the passwords of known programs hidden.

    Also hides passwords in scripts.
    """
    return [_script(word) for word in _command(words)]


def _script(text: str, depth: int = 0) -> str:
    """Hide passwords in a script. The rest of the text does not change."""
    if depth == _DEEPEST or not any(blank in text for blank in " \t\n"):
        return text
    written: list[str] = []
    command: list[str] = []
    gaps: list[str] = []
    end = 0
    for found in _WORD.finditer(text):
        gap = text[end : found.start()]
        if _NEXT_COMMAND.search(gap):
            written += _together(gaps, command, depth)
            command, gaps = [], []
        command.append(found.group())
        gaps.append(gap)
        end = found.end()
    written += _together(gaps, command, depth)
    return "".join(written) + text[end:]


def _together(gaps: Sequence[str], command: Sequence[str], depth: int) -> Iterator[str]:
    for gap, word in zip(gaps, _command(command)):
        quoted = word[:1] in "'\"" and len(word) > 2 and word[0] == word[-1]
        yield gap
        yield word[0] + _script(word[1:-1], depth + 1) + word[-1] if quoted else word


def _command(words: Sequence[str]) -> list[str]:
    words = list(words)
    start = _program(words, 0)
    while start is not None:
        name = _name(words[start])
        last = _hide(words, start, name)
        start = _program(words, last) if name == "sshpass" else None
    return words


def _program(words: Sequence[str], start: int) -> int | None:
    """Return the index of the known program that a command runs, or None."""
    at = start
    while at < len(words) and re.match(r"\w+=", words[at]):
        at += 1
    while at is not None and at < len(words):
        name = _name(words[at])
        if name in _KNOWN:
            return at
        if _INTERPRETER.fullmatch(name):
            at = _script_of(words, at)
            return at if at is not None and _name(words[at]) in _KNOWN else None
        at = _run_by(words, at) if _RUNS_ANOTHER.fullmatch(name) else None
    return None


def _run_by(words: Sequence[str], at: int) -> int | None:
    """Return the index of the program that a wrapper runs, or None.

    Wrappers may have options that are unknown here.
    """
    for later in range(at + 1, len(words)):
        before, name = words[later - 1], _name(words[later])
        if (
            words[later].startswith("-")
            or "=" in words[later]
            or before in _USER_OPTIONS
            or re.match(r"\d", words[later])
        ):
            continue
        known = name in _KNOWN or _RUNS_ANOTHER.fullmatch(name) or _INTERPRETER.fullmatch(name)
        # A word after an unknown option may be the option's value.
        if known or not before.startswith("-") or "=" in before:
            return later
    return None


def _script_of(words: Sequence[str], at: int) -> int | None:
    """Return the index of the script or module that an interpreter runs, or None."""
    later = at + 1
    while later < len(words) and words[later].startswith("-"):
        if words[later] == "-c":
            return None
        later += 2 if words[later] in _INTERPRETER_VALUES else 1
    return later if later < len(words) else None


def _name(word: str) -> str:
    return word.strip("'\"").rpartition("/")[2]


def _hide(words: list[str], start: int, name: str) -> int:
    """Hide the secrets in a program's arguments in place.

    Returns the index after its last argument.
    """
    option, pairs = _PASSWORD_OPTION.get(name), _PAIR_OPTION.get(name, ())
    if name in _ONLY_AT and _ONLY_AT[name] not in words[start:]:
        return len(words)
    at = start + 1
    while at < len(words):
        word = words[at]
        following = at + 1 < len(words) and not words[at + 1].startswith("-")
        if name == "wandb" and _WANDB_KEY.fullmatch(word):
            words[at] = HIDDEN
        elif word == option and following:
            words[at + 1] = HIDDEN
            at += 1
        elif option and word.startswith(option) and word != option:
            words[at] = option + HIDDEN
        elif word in pairs and following:
            user, colon, _password = words[at + 1].partition(":")
            words[at + 1] = user + colon + HIDDEN if colon else words[at + 1]
            at += 1
        elif name == "sshpass" and not word.startswith("-"):
            # The remaining words are the command for sshpass to run.
            return at
        at += 1
    return len(words)
