# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a command line is shown: all but secrets, as far as a name tells them."""

from __future__ import annotations

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.command_line import shown


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
def test_what_is_none_stays(line):
    assert shown(line.split(" ")) == line


@pytest.mark.parametrize("word", ["a" * 1_000_000, "token" * 200_000, "://" * 300_000, "token" + " " * 1_000_000])
def test_a_long_argument_is_no_burden(word):
    # With a search that goes back over what it has seen this would take hours.
    assert shown(["python3", word]) == "python3 " + word
