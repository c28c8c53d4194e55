"""train.py with the real transformers and datasets: MRPC's columns and two models' shapes, random, from local folders.

Needs `pip install '.[hub]'`, some 400 MiB; no network: a name of the hub is also a folder, where there is one.
"""

import json
import random
import subprocess
import sys

import pytest

from trainer import checkpoint, start_python

WORDS = [f"word{i}" for i in range(200)]


def mrpc_shaped(folder):
    """Pairs of random sentences; two of three pairs are twice the same, as in MRPC by its labels."""
    draw = random.Random(0)

    def sentence():
        return " ".join(draw.choices(WORDS, k=draw.randint(5, 12)))

    def rows(count):
        for number in range(count):
            first = sentence()
            second = first if number % 3 else sentence()
            yield {"sentence1": first, "sentence2": second, "label": int(number % 3 > 0), "idx": number}

    (folder / "mrpc").mkdir(parents=True)
    parts = {"train": 48, "validation": 17}
    for part, count in parts.items():
        (folder / f"mrpc/{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(count)))
    files = [{"split": part, "path": f"mrpc/{part}.jsonl"} for part in parts]
    configs = json.dumps([{"config_name": "mrpc", "data_files": files}])
    (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")


MODELS = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DistilBertConfig, DistilBertForSequenceClassification as DistilBert, PreTrainedTokenizerFast
from transformers import LlamaConfig, LlamaForSequenceClassification as Llama

def keep(name, model, config, special, **shape):
    words = ["?", *dict.fromkeys(special.values()), *sys.argv[1:]]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?", **special).save_pretrained(name)
    model(config(vocab_size=len(words), **shape)).save_pretrained(name)

# DistilBERT has 6 layers of width 768; SmolLM2-135M, a Llama, 30 of width 576, 9 heads on 3, and nothing to pad with.
bert = {"pad_token": "[PAD]", "sep_token": "[SEP]", "cls_token": "[CLS]"}
keep("distilbert", DistilBert, DistilBertConfig, bert, dim=48, n_heads=4, hidden_dim=192, n_layers=2, pad_token_id=1)
llama = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True, "pad_token_id": None}
keep("smollm2", Llama, LlamaConfig, llama, hidden_size=36, intermediate_size=96, num_hidden_layers=3, **heads)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A folder in which the names that train.py asks for are folders."""
    for library in ("transformers", "datasets"):  # REQUIRE_ALL does not ask for them: they are 400 MiB
        pytest.importorskip(library, reason="pip install '.[hub]'")
    folder = tmp_path_factory.mktemp("hub")
    mrpc_shaped(folder / "nyu-mll/glue")
    subprocess.run([sys.executable, "-c", MODELS, *WORDS], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(("shape", "weight"), [("distilbert", "classifier.weight"), ("smollm2", "score.weight")])
def test_both_shapes_train_on_mrpc_shaped_data_without_a_hub(hub, shape, weight, tmp_path, monkeypatch):
    monkeypatch.chdir(hub)
    for name, value in {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    flags = ["--dataset", "mrpc", "--model", f"hf:{shape}", "--context", 32, "--batch", 8, "--steps", 4]
    first, other = start_python(2, *flags, "--out", tmp_path / "out", path=hub)
    assert (first.code, other.code) == (0, 0), first.err
    assert "4 steps of 2 ranks × 1 micro-batches × 4 samples" in first.out
    assert "accuracy" in first.out
    assert "complete after step 4" in first.out
    saved = checkpoint(tmp_path / "out")["model"]
    assert weight in saved
    assert all(value.isfinite().all() for value in saved.values())
