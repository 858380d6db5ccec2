# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hide secrets in command lines.

A secret is recognized by the name of its option or variable, by the program, or by a prefix of the secret itself.
"""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.processes.command_line import shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["jupyter-lab", "--IdentityProvider.token=4f2a"], "jupyter-lab --IdentityProvider.token=***"),
        (["jupyter", "--NotebookApp.password=a b", "x"], "jupyter --NotebookApp.password=*** x"),
        (["serve", "--api-key", "k1", "--port", "80"], "serve --api-key *** --port 80"),
        (["serve", "--hf_token", "hf_x"], "serve --hf_token ***"),
        (["serve", "-token=x"], "serve -token=***"),
        (["env", "WANDB_API_KEY=x", "AWS_SECRET_ACCESS_KEY=y", "PGPASSWORD=z"],
         "env WANDB_API_KEY=*** AWS_SECRET_ACCESS_KEY=*** PGPASSWORD=***"),
        (["sh", "-c", "export HF_TOKEN=abc; python train.py"], "sh -c export HF_TOKEN=***; python train.py"),
        (["python", "-c", "login(token='abc', name='run')"], "python -c login(token='***', name='run')"),
        (["python", "-c", '{"password": "x1", "rank": 2}'], 'python -c {"password": "***", "rank": 2}'),
        (["curl", "-H", "Authorization: Bearer abc.def"], "curl -H Authorization: Bearer ***"),
        (["mlflow", "--uri", "postgresql://me:pw@db/runs"], "mlflow --uri postgresql://me:***@db/runs"),
        (["curl", "https://hub/api?token=abc&user=me"], "curl https://hub/api?token=***&user=me"),
        (["serve", "--use-auth-token", "--port", "80"], "serve --use-auth-token --port 80"),
        (["serve", "--password="], "serve --password="),
    ],
)  # fmt: skip
def test_a_secret_is_hidden(words, line):
    assert shown(words) == line


LETTERS = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGh"
HEX = "0123456789abcdef0123456789abcdef01234567"
#: One secret of each issuer. Its letters are meaningless.
MARKED = [
    *("gh%s_%s" % (kind, LETTERS[:36]) for kind in "pousr"),
    "github_pat_" + LETTERS + "_" + LETTERS[:37],
    "glpat-" + LETTERS[:20],
    "glpat-" + LETTERS[:27] + ".01.0w" + LETTERS[:7],
    "glcbt-64_" + LETTERS[:20],
    "hf_" + LETTERS[:34],
    "sk-" + LETTERS[:20] + "T3BlbkFJ" + LETTERS[:20],
    "sk-proj-" + LETTERS + "-_" + LETTERS,
    "sk-ant-api03-" + LETTERS + "-" + LETTERS + "AA",
    "xoxb-1234567890-1234567890123-" + LETTERS[:24],
    "xapp-1-A0123456789-1234567890123-" + HEX,
    "AIza" + LETTERS[:35],
    "ya29." + LETTERS + "_" + LETTERS,
    "npm_" + LETTERS[:36],
    "pypi-AgEIcHlwaS5vcmc" + LETTERS,
    "wandb_v1_" + LETTERS,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9." + LETTERS,
    "-----BEGIN OPENSSH PRIVATE KEY-----\n%s\n%s\n-----END OPENSSH PRIVATE KEY-----" % (LETTERS, LETTERS),
    "-----BEGIN PRIVATE KEY-----\n" + LETTERS,
]


@pytest.mark.parametrize("secret", MARKED, ids=lambda secret: secret[:12])
def test_secret_is_recognized_by_its_prefix(secret):
    assert shown(["python3", "train.py", secret]) == "python3 train.py ***"
    assert shown(["sh", "-c", "login '%s'" % secret]).startswith("sh -c login '***")
    assert shown(["curl", "https://host/%s" % secret]) == "curl https://host/***"
    # The shell splits this line in the same way if it has no quotes.
    assert LETTERS[:20] not in shown(secret.split()) and HEX not in shown(secret.split())


def test_aws_key_is_hidden_with_its_secret():
    id, secret = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    assert shown(["s3", id, secret, "bucket"]) == "s3 *** *** bucket"
    assert shown(["s3", "%s:%s" % (id.replace("AKIA", "ASIA"), secret)]) == "s3 ***:***"
    # Without a key before it, a text of 40 characters can be something else, for example a commit.
    assert shown(["git", "checkout", HEX]) == "git checkout " + HEX


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("mysql -u root -psecret shop", "mysql -u root -p*** shop"),
        ("/usr/bin/mariadb -p secret shop", "/usr/bin/mariadb -p *** shop"),
        ("mysqldump -p --all-databases", "mysqldump -p --all-databases"),
        ("sshpass -p secret ssh -p 2222 gpu1", "sshpass -p *** ssh -p 2222 gpu1"),
        ("sshpass -psecret mysql -pother", "sshpass -p*** mysql -p***"),
        ("sudo -u bob mysql -psecret", "sudo -u bob mysql -p***"),
        ("sudo -E MYSQL_HOST=db timeout 5 mysql -psecret", "sudo -E MYSQL_HOST=db timeout 5 mysql -p***"),
        ("python3 -u /usr/bin/mycli -p secret", "python3 -u /usr/bin/mycli -p ***"),
        ("docker login -u me -p secret registry", "docker login -u me -p *** registry"),
        ("ldapsearch -D cn=me -w secret -b dc=org", "ldapsearch -D cn=me -w *** -b dc=org"),
        ("redis-cli -h db -a secret", "redis-cli -h db -a ***"),
        ("curl -u me:secret https://host", "curl -u me:*** https://host"),
        ("wandb login --relogin " + HEX, "wandb login --relogin ***"),
        ("python -m wandb login " + HEX, "python -m wandb login ***"),
        ("train --wandb-key %s --lr 1" % HEX, "train --wandb-key *** --lr 1"),
        ("serve --key s3cr3t --port 80", "serve --key *** --port 80"),
        ("serve --key=s3cr3t", "serve --key=***"),
        ("serve --pw s3cr3t --db-pw=x", "serve --pw *** --db-pw=***"),
        ("mlflow postgresql://me:p@ss@db/runs", "mlflow postgresql://me:***@db/runs"),
        ("curl -H Authorization: Bearer s3cr3t https://host", "curl -H Authorization: Bearer *** https://host"),
    ],
)
def test_secret_is_recognized_by_its_program_or_option(line, written):
    assert shown(line.split(" ")) == written


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("cd x && mysql -u me -psecret | gzip; ssh -p 22 h", "cd x && mysql -u me -p*** | gzip; ssh -p 22 h"),
        ("mysql -p'se cret' shop", "mysql -p*** shop"),
        ("su me -c 'mysql -psecret shop' # mysql -p 1", "su me -c 'mysql -p*** shop' # mysql -p 1"),
        ("curl -H 'Authorization: Digest username=me, response=00' u", "curl -H 'Authorization: Digest ***' u"),
        ('{"Authorization": "Basic bWU6c2VjcmV0", "x": 1}', '{"Authorization": "Basic ***", "x": 1}'),
        ("Cookie: _xsrf=1; session=2", "Cookie: ***"),
        ("headers('x: bearer 0123456789.abc-_~+/==')", "headers('x: bearer ***')"),
    ],
)
def test_a_secret_in_a_script_or_header_is_hidden(word, written):
    assert shown(["sh", "-c", word]) == "sh -c " + written


@pytest.mark.parametrize(
    "line",
    [
        # Ports, paths and numbers are not secrets.
        "ssh -p 2222 gpu1",
        "ssh -p2222 gpu1",
        "python3 serve.py -p 8080 --backend mysql -p 8081",
        "python3 -m http.server -p 8080",
        "docker run -p 8080:80 --name mysql -p 3306:3306 mysql:8",
        "podman run --name mysql -p 3306:3306 mysql",
        "srun -p gpu --gres=gpu:1 python train.py --store mysql -p 80",
        "sudo -u mysql rsync -p 873",
        "mysql -P 3306 -h db -u me shop",
        "mosquitto_sub -p 1883 -t gpu",
        "rsync -p --port 873 mysql",
        "serve --key /etc/tls/server.key --private-key=/etc/tls/key.pem",
        "sort -k 2 --key-file x --monkey 3 --keys a",
        # These names start like secrets.
        "train sk-learn-gradient-boosting-regressor-v2 hf_transfer npm_config pypi-mirror glove-840b-300d-common-crawl",
        "train ghp_ xoxo-net AIzawa akiaiosfodnn7example eyJ eyJhbGciOi task-sk-resnet-50-imagenet-pretrained",
        "convert -----BEGIN CERTIFICATE----- MIIB -----END CERTIFICATE-----",
        "paint a bearer of news --cookies jar",
        "git clone ssh://git@host/repo https://me@host:8443/a@b",
    ],
)
def test_similar_text_is_not_hidden(line):
    assert shown(line.split(" ")) == line


@pytest.mark.parametrize(
    "line",
    [
        "python3 train.py --tokenizer gpt2 --max-tokens 4096 --max_new_tokens=16 --tokenizer_name=t5",
        "torchrun --nproc-per-node=8 train.py --key-dim 64 --kv-cache-dtype=fp8 --ssl-keyfile /etc/tls/key.pem",
        "serve --token-file /run/token --password-file=/run/password --bypass=1 --passes 3 --compass north",
        "rsync host:/data https://example.org:8080/path@2",
        "",
    ],
)
def test_text_without_secrets_is_unchanged(line):
    assert shown(line.split(" ")) == line


@pytest.mark.parametrize(
    "part",
    ["a", "token", "://", " ", "'\"", "eyJ-", "eyJaaaaaaaa ", "-----BEGIN ", "mysql ", "a=", "sudo ", "authorization"],
)
def test_long_argument_is_fast(part):
    # A regular expression that backtracks would take hours on this text.
    word = ("token" if part == " " else "") + part * (250_000 // len(part))
    assert shown(["python3", word]) == "python3 " + word
