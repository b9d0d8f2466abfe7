"""`peagle drafter generate` on a real engine: rows of a file's prompts with the target's own continuations."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.drafter_cli import app
from support.paths import EMBEDDED

# Warnings of vLLM and torch at import and start are not about this project.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

TARGET = EMBEDDED / "target"
ROW_TOKENS = 64
END = 0
# Its answer ends by itself; the chat's answer continues to the end of its row.
TEXT = "\n\nif __name__ == '__main__':"
CHAT = "import unittest\n\nclass TestCase(unittest.TestCase):\n    def test_open(self):"
# Largest gap in nats between the first choice and the chosen token: the engine rounds to bfloat16.
TIE = 0.25


def test_rows_are_the_target_s_own_answers_to_the_end(tmp_path: Path) -> None:
    asked = ({"prompt": TEXT}, {"messages": [{"role": "user", "content": CHAT}]}, {"prompt": "x = 1\n" * ROW_TOKENS})
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    options = ["--prompts-from", str(tmp_path / "p.jsonl"), "--row-tokens", str(ROW_TOKENS), "--held-out"]
    out = tmp_path / "new" / "rows.npz"
    done = CliRunner().invoke(app, ["generate", str(TARGET), "--out", str(out), *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert "1 with a prompt too long" in " ".join(done.output.split())
    rows = {int(prompt): row for row, prompt in GeneratedText.load(out).rows()}
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    text, chat = tokenizer.encode(TEXT), tokenizer.encode(CHAT + "\n")
    ended, full = rows[len(text)], rows[len(chat)]
    assert ended[: len(text)].tolist() == text
    assert full[: len(chat)].tolist() == chat
    assert (ended[len(text) :] == END).nonzero()[0].tolist() == [len(ended) - len(text) - 1]
    assert len(ended) < len(full) == ROW_TOKENS
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    for row, prompt_tokens in ((ended, len(text)), (full, len(chat))):
        tokens = torch.from_numpy(row).long()
        with torch.no_grad():
            chances = model(tokens[None]).logits[0, prompt_tokens - 1 : -1].log_softmax(-1)
        chosen = chances.gather(1, tokens[prompt_tokens:, None])[:, 0]
        assert (chances.max(-1).values - chosen).max() < TIE
