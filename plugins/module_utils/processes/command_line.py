# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hide secrets in command lines before they are logged, reported or sent.

More people read logs, reports and web hooks than /proc. A secret is recognized by the name before it, by the program
that gets it, or by its issuer's prefix. Any other secret looks like an ordinary word and stays visible.
"""

from __future__ import annotations

import re
from typing import Sequence

from ..printable import printable
from .command_line_programs import HIDDEN, without_passwords

_KIND = (
    r"(?:password|passwd|passphrase|secret|token|credentials?"
    r"|(?:api|access|account|auth|encryption|private|secret|wandb|openai)[-_.]?key|(?<![a-z0-9])(?:pass|pwd|pw))"
)
_NAME = r"[\w.-]*" + _KIND
#: An argument or variable whose whole value is a secret, including an option named just "key".
_WHOLE = re.compile(r"((?:--?)?%s|--?key)=." % _NAME, re.IGNORECASE | re.DOTALL)
#: An option whose value is the next argument.
_BEFORE = re.compile(r"--?%s|--?key" % _NAME, re.IGNORECASE)
#: The value of `--key` or `--private-key` if it is a file name, and therefore no secret.
_FILE = re.compile(r"[\w./~-]+\.(?:pem|key)", re.IGNORECASE)
#: A secret inside an argument, such as a script, header or address. The pattern has no part of unlimited length at its
#: start, because it is tried at every position of an argument, which may have a megabyte.
_WITHIN = re.compile(r"(%s[\"']?\s{0,9}[=:]\s{0,9}[\"']?)[^\s\"'&,;)]+" % _KIND, re.IGNORECASE)
#: The password in an address. It ends at the last @ before the path, because a password may contain @.
_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s]+(?=@)")
_SCHEME = r"(?:(?:basic|bearer|digest|token|negotiate|apikey)\s{1,9})?"
#: The secret in a header. It ends at the end of the argument or of the quotes, because a header may have several parts.
_HEADER = re.compile(r"((?:authorization|cookie)[\"']?:\s{0,9}[\"']?%s)[^\s\"'][^\"'\r\n]*" % _SCHEME, re.IGNORECASE)
#: Source: https://www.rfc-editor.org/rfc/rfc6750#section-2.1
_BEARER = re.compile(r"(\bbearer\s{1,9})[\w.~+/-]{8,}=*", re.IGNORECASE)
_SPLIT_HEADER = re.compile(r"(authorization:\s{1,9}%s)[^\s\"']+" % _SCHEME, re.IGNORECASE)

#: Prefixes of secrets by issuer. Minimum lengths exclude names of models and files. No pattern continues after a part
#: of unlimited length, so that each line is read once. Lengths that an issuer does not publish are from
#: https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml
_MARKED = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    # https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
    r"gh[pousr]_[\w.-]{30,}|github_pat_\w{30,}"
    # https://docs.gitlab.com/security/tokens/#token-prefixes
    r"|gl(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[\w-]{20,}(?:\.[\w.]+)?"
    # https://huggingface.co/docs/hub/security-tokens
    r"|(?:hf_|api_org_)[A-Za-z0-9]{30,}"
    # OpenAI, Anthropic, OpenRouter and compatible servers.
    r"|sk-(?:(?:proj|svcacct|admin|ant|or)-[\w-]{16,}|[A-Za-z0-9]{20,})"
    # https://docs.slack.dev/authentication/tokens
    r"|(?:xox[a-z]|xapp)-[\w-]{10,}"
    # Google API keys (https://cloud.google.com/docs/authentication/api-keys), access tokens and client secrets.
    r"|AIza[\w-]{35}|ya29\.[\w.-]{20,}|GOCSPX-[\w-]{20,}"
    # https://github.blog/2021-09-23-announcing-npms-new-access-token-format/
    r"|npm_[A-Za-z0-9]{36}"
    # https://warehouse.pypa.io/development/token-scanning.html
    r"|pypi-Ag[\w-]{40,}"
    # https://docs.wandb.ai/models/ref/cli/wandb-login
    r"|wandb_v1_\w{20,}"
    r")"
)
#: A JSON Web Token: a JSON object in base64, followed by one or more parts
#: (https://www.rfc-editor.org/rfc/rfc7519#section-3.1).
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{8,}(?:\.[\w-]*){1,4}")
#: A private key: https://www.rfc-editor.org/rfc/rfc7468#section-2. Without an end line, it extends to the end of the
#: text.
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)", re.DOTALL)
#: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html#identifiers-unique-ids
_AWS_ID = re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])")
#: The secret that belongs to an AWS key id can be recognized only by its length, so it is hidden only next to a key id.
_AWS_SECRET = re.compile(r"(?<![A-Za-z0-9/+])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")


def shown(words: Sequence[str]) -> str:
    """Return the arguments as one line, without secrets or control characters."""
    line = []
    follows = False
    for word in without_passwords(words):
        if follows and not word.startswith("-") and not _FILE.fullmatch(word):
            line.append(HIDDEN)
        else:
            line.append(_hidden(word))
        follows = bool(_BEFORE.fullmatch(word))
    return printable(_without_marked(" ".join(line)))


def _hidden(word: str) -> str:
    whole = _WHOLE.match(word)
    if whole and _FILE.fullmatch(word, whole.end(1) + 1):
        return word
    if whole:
        return "%s=%s" % (whole.group(1), HIDDEN)
    for pattern in (_HEADER, _BEARER, _WITHIN, _ADDRESS):
        word = pattern.sub(r"\1" + HIDDEN, word)
    return word


def _without_marked(line: str) -> str:
    """Hide secrets with a known form in a line.

    A secret without quotes may extend over several arguments.
    """
    line = _SPLIT_HEADER.sub(r"\1" + HIDDEN, line)
    for pattern in (_PEM, _JWT, _MARKED):
        line = pattern.sub(HIDDEN, line)
    if _AWS_ID.search(line):
        line = _AWS_SECRET.sub(HIDDEN, _AWS_ID.sub(HIDDEN, line))
    return line
