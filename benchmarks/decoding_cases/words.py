"Language models: what they add to the same logits."
from itertools import groupby, product
from pathlib import Path

import numpy as np
from decoding_cases.task import best, build, counts_of, divided, ratio, row_of, save, spoken, temperature_of, timed

from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.decode.tune import Tuning, tune
from b2t_kit.lexicon.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.model import LanguageModel, perplexity
from b2t_kit.simulate.logits import Noise
from b2t_kit.speech.calibrate import tempered
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.text.metrics import Counts, per, rate_of
from b2t_kit.text.phonemes import BAR, collapse, to_ids, to_phonemes


def words(labels: Path, /, *, levels: str = "1", flatness: str = "middle", sentences: int = 1426, tune_on: int = 250,
          text: tuple[Path, ...] = (), order: int = 3, beam: int = SearchConfig().beam,
          json: Path | None = None) -> None:
    """Measure what a language model adds: word error of the same logits with different models.

    The models see the sentences that are neither scored nor tuned on, and further --text (lines that contain a scored
    sentence are dropped). Each scored sentence becomes
    noisy logits (`simulate`); at level 1 with the phoneme error rate of the published baseline, at other levels
    with about that many times as many errors. --flatness sharp,middle,flat repeats everything with the same errors and
    other certainty. --levels and --flatness are lists with commas. The logits are divided by a temperature fitted to
    the tuning sentences, and decoded in six ways:

    greedy          the best class of each frame, and for each stretch between silences the likeliest word with exactly
                    these phonemes, or the phonemes themselves if there is none
    1-gram          the kit's search with a model of word frequencies only, default weights
    3-gram          the same search and the same weights with a model of --order words
    ... tuned       both, each with its own weights found on the tuning sentences (none with --tune-on 0)

    Ratios of the 3-gram's errors to the 1-gram's come with intervals of paired resampling: "untuned" and "tuned"
    compare like with like; "step" compares the tuned 3-gram with the untuned 1-gram.
    """
    scored, tuned_on, rest = divided(labels)
    orders = {f"{one}-gram": one for one in (1, order)}
    made = {name: build(rest, scored + tuned_on, one, more=text) for name, one in orders.items()}
    facts = {name: {"ngrams": sum(model.counts), "perplexity": perplexity(model, tuned_on)[0], "origin": model.origin}
             for name, model in made.items()}
    print(facts, flush=True)
    done = []
    for factor, certainty in product(map(float, levels.split(",")), flatness.split(",")):
        noise = Noise(errors=factor, flatness=certainty)
        temperature = temperature_of(noise, tuned_on)
        done.append({"temperature": temperature, **level(scored[:sentences], tuned_on[:tune_on], made, noise,
                                                         SearchConfig(beam=beam), temperature)})
        save(json, {"models": facts, "beam": beam, "levels": done})


def level(scored: list[str], tuned_on: list[str], models: dict[str, LanguageModel], noise: Noise,
          config: SearchConfig, temperature: float) -> dict:
    "All ways of reading the sentences with one kind of noise."
    generator, lexicon = np.random.default_rng(1), build_lexicon()
    trials, others = ([tempered(one, temperature) for one in spoken(part, generator, noise)]
                      for part in (scored, tuned_on))
    rate = per([to_ids(sentence_to_phonemes(one)) for one in scored], [collapse(one.argmax(axis=1)) for one in trials])
    print(f"noise {noise.errors:g}, {noise.flatness}: phoneme error rate {rate}", flush=True)
    counts: dict[str, Counts] = {}
    rows: dict[str, dict] = {}
    tunings: dict[str, Tuning] = {}

    def tell(name: str, found: list[str], speed: float | None = None) -> None:
        counts[name] = counts_of(scored, found)
        rows[name] = {**row_of(rate_of(counts[name])), "per_cpu_second": speed}
        pace = f"   {speed:.1f} trials per CPU second" if speed else ""
        print(f"{name:14} {rate_of(counts[name])}{pace}", flush=True)

    def decode(name: str, model: LanguageModel, chosen: SearchConfig) -> None:
        found, seconds = timed(BeamSearch(lexicon, model, chosen), trials, threads=0)
        tell(name, best(found), len(found) / seconds)

    low, high = models
    tell("greedy", [spelled_out(one, lexicon, models[low]) for one in trials])
    for name, model in models.items():
        decode(name, model, config)
        if tuned_on:
            tunings[name] = tune(lexicon, model, others, tuned_on, config)
            print(tunings[name], flush=True)
            decode(f"{name} tuned", model, tunings[name].best.config)
    pairs = {"untuned": (high, low), "tuned": (f"{high} tuned", f"{low} tuned"), "step": (f"{high} tuned", low)}
    ratios = {kind: ratio(counts[one], counts[base]) for kind, (one, base) in pairs.items() if one in counts}
    for kind, one in ratios.items():
        print(f"{kind}: {one['ratio']:.0%} ({one['low']:.0%}-{one['high']:.0%}) of the {low}'s errors")
    return {"noise": noise.errors, "flatness": noise.flatness, "sentences": len(scored), "tuned_on": len(tuned_on),
            "per": rate.rate, "ratios": ratios, "rows": rows,
            "tuning": {name: one.to_dict() for name, one in tunings.items()}}


def spelled_out(logits: np.ndarray, lexicon: Lexicon, model: LanguageModel) -> str:
    "The greedy result: words where a stretch is one, else phonemes."
    found = []
    labels = to_phonemes(collapse(logits.argmax(axis=1)))
    for stretch in (tuple(run) for silent, run in groupby(labels, key=BAR.__eq__) if not silent):
        words = [lexicon.words[word] for word in lexicon.spoken.get(tuple(to_ids(stretch)), ())]
        likely = {word: model.unigrams[model.numbers([word])[0]] for word in words}
        found.append(max(likely, key=likely.get) if likely else "".join(stretch).lower())
    return " ".join(found)
