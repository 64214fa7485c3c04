"""What rescoring adds: word error of the same lists of sentences, with and without a causal language model.

    python benchmarks/rescoring.py LABELS.csv [--sentences 1426] [--tune-on 250] [--minutes 5] [--json FILE]

Sentences are divided and spoken as in words.py, and the search with a 3-gram gives a list of each.
The causal model is a small transformer that is trained here, from nothing, on the same sentences as
the 3-gram; it stands for a large one, which knows far more, and cannot be fetched here. Three ways
of choosing from the same lists, all with weights from the sentences to tune on:

tuned      acoustic scale and word bonus
rescored   these, and the share of the causal model in the language score
oracle     of each list the sentence with fewest errors: what choosing could reach at best

These numbers say what the step is worth with a model of this size; they say nothing about real
recordings, nor about large language models.
"""

import argparse
import csv
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

from b2t_kit.decode.beam import BeamSearch, SearchConfig
from b2t_kit.decode.building import build_language_model
from b2t_kit.decode.causal import CausalScorer, Writing, token_ids
from b2t_kit.decode.hypotheses import DecodedTrial
from b2t_kit.decode.language_model import LanguageModel
from b2t_kit.decode.lexicon import build_lexicon
from b2t_kit.decode.noisy import noisy_sentence
from b2t_kit.decode.rescore import GRID, best_weights, llm_scores, tabulate
from b2t_kit.text.metrics import Rate, compare
from b2t_kit.text.phonemes import normalise


def divided(path: Path, scored: int, tuned_on: int) -> tuple[list[str], list[str], list[str]]:
    "Different sentences of a table: scored, tuned on, and the rest."
    with open(path, newline="", encoding="utf-8") as file:
        rows = [normalise(row["sentence_label"], True) for row in csv.DictReader(file)]
    sentences = sorted({row for row in rows if row})
    random.Random(0).shuffle(sentences)
    return sentences[:scored], sentences[scored : scored + tuned_on], sentences[scored + tuned_on :]


def ngram_of(text: list[str], scored: list[str], folder: Path) -> LanguageModel:
    "A 3-gram of the text over the whole dictionary; scored sentences are left out of it."
    (folder / "text.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    lines = [f"{number},{one}" for number, one in enumerate(scored)]
    (folder / "scored.csv").write_text("\n".join(["id,sentence_label", *lines]) + "\n", encoding="utf-8")
    return build_language_model([folder / "text.txt"], folder / "3.b2tlm", 3, vocabulary="dictionary",
                                exclude=[folder / "scored.csv"], leaks="drop").read()


def tokenizer_of(texts: list[str], pieces: int) -> PreTrainedTokenizerFast:
    "A byte-level tokenizer learned from the sentences."
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=pieces, special_tokens=["</s>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def trained(texts: list[str], tokenizer: PreTrainedTokenizerFast, minutes: float, seed: int = 0) -> CausalScorer:
    "A small transformer, trained for some minutes of CPU time."
    torch.manual_seed(seed)
    writing, chance = Writing(), random.Random(seed)
    sequences = [token_ids(tokenizer, writing(text)) for text in texts]
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=128, n_layer=3, n_head=4, n_positions=160,
                        resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2, bos_token_id=0, eos_token_id=0)
    model = AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    start, done, losses = time.process_time(), 0.0, []
    while done < 1:
        rows = sorted(chance.sample(sequences, 512), key=len)
        for first in range(0, 512, 64):  # rows of like length
            part = rows[first : first + 64]
            ids = torch.zeros(len(part), max(map(len, part)), dtype=torch.long)
            for row, sequence in zip(ids, part):
                row[: len(sequence)] = torch.tensor(sequence)
            lengths = torch.tensor(list(map(len, part)))
            known = torch.arange(ids.shape[1]) < lengths[:, None]
            labels = ids.masked_fill(~known, -100)
            loss = model(input_ids=ids, attention_mask=known.long(), labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * max(1 - done, 0.02)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        done = (time.process_time() - start) / (60 * minutes)
    count = sum(one.numel() for one in model.parameters())
    print(f"causal model: {count:,} parameters, {len(losses)} steps of 64 sentences, last loss "
          f"{np.mean(losses[-50:]):.2f} per token", flush=True)
    return CausalScorer(model.eval(), tokenizer, "trained here", writing)


def lists_of(search: BeamSearch, sentences: list[str], generator: np.random.Generator) -> list[DecodedTrial]:
    "Each spoken sentence, decoded."
    logits = [noisy_sentence(one, generator) for one in sentences]
    found = search.decode_many(logits)
    return [DecodedTrial(f"group {number % 20:02d}", 1, number, tuple(one), said)
            for number, (said, one) in enumerate(zip(sentences, found))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--sentences", type=int, default=1426)
    parser.add_argument("--tune-on", type=int, default=250)
    parser.add_argument("--minutes", type=float, default=5.0, help="of CPU time for training")
    parser.add_argument("--beam", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scored, tuned_on, text = divided(options.labels, options.sentences, options.tune_on)
    generator = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        model = ngram_of(text, scored + tuned_on, Path(folder))
        config = SearchConfig(beam=options.beam, threshold=25.0, token_threshold=15.0)  # for long lists
        search = BeamSearch(build_lexicon(), model, config)
        test, tune = (lists_of(search, part, generator) for part in (scored, tuned_on))
    length = np.mean([len(one.hypotheses) for one in test])
    print(f"{len(test)} lists of {length:.0f} sentences to score, {len(tune)} lists to tune on, {len(text)} "
          "other sentences", flush=True)
    scorer = trained(text, tokenizer_of(text, 2000), options.minutes)
    start = time.process_time()
    tables = [tabulate(part, llm_scores(part, scorer.score_lists)) for part in (tune, test)]
    seconds = time.process_time() - start
    hypotheses = sum(len(one.hypotheses) for one in [*tune, *test])
    print(f"{hypotheses} sentences scored in {seconds:.0f} s of one core, {scorer.nodes} tokens", flush=True)
    weights = {"tuned": best_weights(tables[0], {**GRID, "alpha": np.zeros(1)}), "rescored": best_weights(tables[0])}
    rows: dict[str, Rate] = {name: tables[1].rate(one) for name, one in weights.items()}
    rows["oracle"] = tables[1].oracle
    for name, rate in rows.items():
        print(f"{name:8} {rate}   {weights.get(name, '')}")
    gain = compare(*(tables[1].counts(weights[name]) for name in ("tuned", "rescored")))
    print(f"rescored against tuned: {gain}")
    if options.json:
        table = {name: {"wer": rate.rate, "low": rate.low, "high": rate.high, "edits": rate.edits,
                        "words": rate.total} for name, rate in rows.items()}
        content = {"sentences": len(test), "rows": table, "gain": vars(gain), "scored": hypotheses,
                   "seconds": seconds, "weights": {name: vars(one) for name, one in weights.items()}}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
