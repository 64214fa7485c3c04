"Settings of the search: default weights, hotwords, and blank skipping."
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import numpy as np
from decoding_cases.calibration import name_of
from decoding_cases.task import best, build, calibrated, counts_of, divided, ratio, row_of, save, save_at, spoken
from decoding_cases.task import temperature_of, timed

from b2t_kit.decode.search import BeamSearch, kept_frames, tempered
from b2t_kit.speech.calibrate import fit_to_sentences
from b2t_kit.decode.search import SearchConfig, parse_hotwords
from b2t_kit.decode.decode import words_in
from b2t_kit.decode.files import read_trials
from b2t_kit.text.lexicon import Lexicon, build_lexicon
from b2t_kit.lm import LanguageModel
from b2t_kit.simulate import default_language_model
from b2t_kit.simulate import Noise
from b2t_kit.simulate import draw_sentence
from b2t_kit.text.metrics import rate_of
from b2t_kit.text.phonemes import normalise

CONFIG = SearchConfig(beam=100, n_best=20)
DEFAULT = SearchConfig(beam=100)
CHOICES = [replace(DEFAULT, acoustic_scale=scale, blank_penalty=penalty, word_bonus=bonus, missing_silence=silence)
           for scale, penalty, bonus, silence
           in product((0.5, 0.65, 0.8, 1.0, 1.2), (3.0, 9.0), (-1.0, 0.0), (-4.0, -8.0))]
CHOICES += [replace(DEFAULT, blank_penalty=penalty) for penalty in (1.0, 30.0)] + [replace(DEFAULT, word_bonus=-2.0)]
NOISES = {"middle": Noise(), "sharp": Noise(flatness="sharp"), "flat": Noise(flatness="flat"),
          "half": Noise(errors=0.5), "double": Noise(errors=2)}
Network = tuple[BeamSearch, list[np.ndarray], list[str]]
Heard = tuple[str, list[str], list[np.ndarray], BeamSearch]  # name, what was said, logits, a search


def hotwords(labels: Path, /, *, with_target: int = 150, without: int = 150, distractors: int = 1000,
             flatness: str = "middle,sharp,flat", json: Path | None = None) -> None:
    """Measure what a list of hotwords finds, and what it does to sentences without one.

    Words that are rare in the models' text are chosen as targets until --with-target scored sentences have one. The
    3-gram `known` and its lexicon (the whole dictionary) know them; `unknown` is built from the same text with every
    target as <unk>, and its lexicon lacks them. The list is all targets, without boosts; then with --distractors other
    words of the dictionary, which nobody says: `unknown` lacks them too. A target counts as found if it is in the
    decoded sentence. --without other scored sentences have no target: are they the same with the list? All this at
    each flatness of the logits.
    """
    scored, tuned_on, text = divided(labels)
    whole = build_lexicon()
    targets = chosen_words(scored, text, whole, with_target)
    others = unsaid_words({word for one in (*scored, *text) for word in one.split()}, whole, distractors)
    has = [one for one in scored if set(targets) & set(one.split())][:with_target]
    lacks = [one for one in scored if not set(targets) & set(one.split())][:without]
    fewer = build_lexicon([word for word in whole.words if word not in {*targets, *others}])
    models = {name: (lexicon, build(text, scored, vocabulary=list(lexicon.words)))
              for name, lexicon in (("known", whole), ("unknown", fewer))}
    result: dict = {"targets": len(targets), "with": len(has), "without": len(lacks), "distractors": len(others)}
    for certainty in flatness.split(","):
        generator = np.random.default_rng(1)
        noise = Noise(flatness=certainty)
        temperature = temperature_of(noise, tuned_on)
        trials = [[tempered(one, temperature) for one in spoken(part, generator, noise)] for part in (has, lacks)]
        result[certainty] = listed(models, {"": [], " + list": targets, " + list, distractors": targets + others},
                                   set(targets), (has, lacks), trials)
        print(certainty, *result[certainty].items(), sep="\n", flush=True)
    save_at(json, "hotwords", result)


def chosen_words(scored: list[str], text: list[str], lexicon: Lexicon, wanted: int) -> list[str]:
    "Rare words, until enough scored sentences have one."
    seen = Counter(word for one in text for word in one.split())
    rare = sorted({word for one in scored for word in one.split() if 1 <= seen[word] <= 10 and word in lexicon
                   and len(lexicon.forms[word][0]) >= 3})
    random.Random(0).shuffle(rare)
    count, targets = 0, []
    while count < wanted:
        targets.append(rare.pop())
        count = sum(bool(set(targets) & set(one.split())) for one in scored)
    return targets


def unsaid_words(said: set[str], lexicon: Lexicon, count: int) -> list[str]:
    "Words of at least three phonemes that are in no sentence."
    words = [word for word in lexicon.words if word not in said and len(lexicon.forms[word][0]) >= 3]
    return random.Random(1).sample(words, count)


def listed(models: dict[str, tuple[Lexicon, LanguageModel]], lists: dict[str, list[str]], targets: set[str],
           said: tuple[list[str], list[str]], trials: list[list[np.ndarray]]) -> dict:
    "The rows of one flatness: sentences with targets, and without."
    rows, rates, texts = {}, {}, {}
    for name, (lexicon, model) in models.items():
        for extra, hot in lists.items():
            label, start = name + extra, time.process_time()
            search = BeamSearch(lexicon, model, CONFIG, hotwords=parse_hotwords(hot) if hot else ())
            _ = search.trie
            opened = time.process_time() - start
            (found, seconds), (others, _) = (timed(search, part) for part in trials)
            found, texts[label] = best(found), best(others)
            rates[label] = hits(said[0], found, targets)
            errors = [counts_of(one, heard) for one, heard in zip(said, (found, texts[label]))]
            changed = sum(one != other for one, other in zip(texts[name], texts[label]))
            rows[label] = {
                "found": int(rates[label][:, 1].sum()), "of": int(rates[label][:, 0].sum()),
                "wer_with": rate_of(errors[0]).rate, "wer_without": rate_of(errors[1]).rate, "changed": changed,
                "invented": sum(bool(set(hot) & set(one.split())) for one in texts[label]),
                "seconds": seconds / len(found), "opened": opened}
    gaps = {f"unknown + list minus {one}": interval(rates["unknown + list"], rates[one])
            for one in ("known", "known + list")}
    return {"rows": rows, **gaps}


def hits(said: list[str], found: list[str], targets: set[str]) -> np.ndarray:
    "Targets of each sentence, and how many of them were decoded: (sentences, 2)."
    pairs = [(Counter(one.split()), Counter(other.split())) for one, other in zip(said, found)]
    return np.array([(sum(true[word] for word in targets & true.keys()),
                      sum(min(true[word], heard[word]) for word in targets & true.keys())) for true, heard in pairs])


def interval(first: np.ndarray, second: np.ndarray, resamples: int = 2000) -> tuple[float, float, float]:
    "The difference of two shares of found targets, with a 95 % interval of paired resampling."
    draws = np.random.default_rng(0).integers(0, len(first), (resamples, len(first)))
    gaps = (first[draws, 1].sum(1) - second[draws, 1].sum(1)) / first[draws, 0].sum(1)
    low, high = np.percentile(gaps, [2.5, 97.5]).tolist()
    return float((first[:, 1].sum() - second[:, 1].sum()) / first[:, 0].sum()), low, high


def settings(labels: Path, /, *, sentences: int = 150, json: Path | None = None) -> None:
    """Measure blank skipping: errors and CPU seconds as ratios to the defaults', in the same run.

    With the 3-gram of all sentences that are neither scored nor tuned on, on the first --sentences scored ones.
    """
    scored, tuned_on, text = divided(labels)
    said, lexicon = scored[:sentences], build_lexicon()
    model = build(text, scored, vocabulary=list(lexicon.words))
    trials, rows, base, spent = calibrated(said, 2, tuned_on), [], None, 1.0
    for change in ({}, {"blank_skip": 0.98}, {"blank_skip": 0.9}):
        search = BeamSearch(lexicon, model, replace(CONFIG, **change))
        found, seconds = timed(search, trials)
        errors = counts_of(said, best(found))
        base, spent = (errors, seconds) if base is None else (base, spent)
        kept = [len(np.arange(len(one))[kept_frames(search.log_probs(one), search.config)]) for one in trials]
        rows.append(change | {"wer": rate_of(errors).rate, "errors": ratio(errors, base), "cpu": seconds / spent,
                              "frames": sum(kept) / sum(map(len, trials))})
        print(rows[-1], flush=True)
    save_at(json, "settings", rows)


def search_defaults(labels: Path, /, *, logits: tuple[Path, ...] = (), sentences: int = 250, judge: int = 1426,
                    json: Path | None = None) -> None:
    """Choose the search's default weights on calibrated logits: how far is each choice from the best of each network?

    Simulated networks at three flatnesses, with half and twice the errors, with a 3-gram over the whole dictionary; one
    with the small default language model; and every second trial of --logits of trained decoders, also with that. Each
    is searched with every choice of a grid, beam 100. A choice is judged by its mean excess: its word error rate
    divided by the best one of that network, both plus 0.3 %, averaged over the networks. Then the first two choices
    and the defaults decode --judge other sentences, on which nothing was chosen, at three flatnesses; and the other
    trials of --logits.
    """
    scored, tuned_on, text = divided(labels)
    large = BeamSearch(build_lexicon(), build(text, scored + tuned_on))
    found = networks(large, tuned_on[:sentences])
    halves = {name_of(path): halved(path) for path in logits}
    rates = {name: searched(network, CHOICES)
             for name, network in {**found, **{name: first for name, (first, _) in halves.items()}}.items()}
    excess = sum((one + 0.003) / (one.min() + 0.003) for one in rates.values()) / len(rates)
    order = np.argsort(excess)
    print("| acoustic scale | blank penalty | word bonus | missing silence | mean excess | " + " | ".join(rates) + " |")
    for at in order:
        print("|", *(f"{weight:g} |" for weight in weights_of(CHOICES[at])), f"{excess[at]:.3f} |",
              " | ".join(f"{100 * one[at]:.1f}" for one in rates.values()), "|", flush=True)
    choices = [replace(CHOICES[at], beam=SearchConfig().beam) for at in order[:2]]
    judged = judged_on(chain(at_flatnesses(labels, judge), (
        (name, said, trials, search) for name, (_, (search, trials, said)) in halves.items())), choices)
    save(json, {"choices": [weights_of(one) for one in CHOICES], "excess": excess.round(4).tolist(),
                "rates": {name: one.round(5).tolist() for name, one in rates.items()}, "judged": judged}, indent=None)


def halved(path: Path) -> tuple[Network, Network]:
    "Every second trial of a trained decoder's, and the others, divided by the temperature of the first half."
    trials = [trial for trial in read_trials(path) if trial.truth]
    said = [normalise(trial.truth, True) for trial in trials]
    search = small_search(said)
    rows = calmed([trial.logits for trial in trials], [trial.logits for trial in trials[::2]], said[::2])
    return (search, rows[::2], said[::2]), (search, rows[1::2], said[1::2])


def calmed(trials: list[np.ndarray], known: list[np.ndarray], said: list[str]) -> list[np.ndarray]:
    "Logits divided by the temperature that is fitted to known ones."
    temperature = fit_to_sentences(known, said, [""] * len(known)).temperature
    return [tempered(one, temperature) for one in trials]


def networks(large: BeamSearch, said: list[str]) -> dict[str, Network]:
    "Simulated networks: each with its search, calibrated logits and sentences."
    found = {name: (large, calmed(trials, trials, said), said)
             for name, noise in NOISES.items() for trials in [spoken(said, 3, noise)]}
    generator = np.random.default_rng(7)
    simulated = [normalise(draw_sentence(generator, held_out=True), True) for _ in said]
    trials = spoken(simulated, 3)
    found["small"] = (small_search(simulated), calmed(trials, trials, simulated), simulated)
    return found


def small_search(sentences: list[str]) -> BeamSearch:
    "A search with the default language model, made without some sentences."
    model = default_language_model(sentences)
    return BeamSearch(build_lexicon(words_in(model)), model)


def searched(network: Network, choices: list[SearchConfig]) -> np.ndarray:  # word error rate of each choice
    "Every choice of weights for one network."
    search, trials, truths = network
    lists = (BeamSearch(search.lexicon, search.model, one).decode_many(trials) for one in choices)
    found = [counts_of(truths, best(one)) for one in lists]
    return np.array([counts.edits.sum() / counts.lengths.sum() for counts in found])


def weights_of(config: SearchConfig) -> list[float]:
    "The four weights."
    return [config.acoustic_scale, config.blank_penalty, config.word_bonus, config.missing_silence]


def judged_on(heard: Iterable[Heard], choices: list[SearchConfig]) -> list[dict]:
    "Word errors of the defaults and the choices on other sentences."
    rows = []
    for name, said, trials, search in heard:
        base = None
        for config in (SearchConfig(), *choices):
            counts = counts_of(said, best(BeamSearch(search.lexicon, search.model, config).decode_many(trials)))
            base = base or counts
            weights, rate, share = weights_of(config), rate_of(counts), ratio(counts, base)
            rows.append({"logits": name, "weights": weights, **row_of(rate), "ratio": share})
            of_defaults = f"{share['ratio']:.2f} ({share['low']:.2f}-{share['high']:.2f}) of the defaults'"
            print(f"{name:7} {weights}  {rate}, {of_defaults}", flush=True)
    return rows


def beams(labels: Path, /, *, logits: tuple[Path, ...] = (), sentences: int = 400, beams: str = "200,100,400,800",
          silences: str = "-4", json: Path | None = None) -> None:
    """What a wider beam is worth, or a dearer missing silence: word errors as a share of the first choice's, CPU time.

    Scored sentences at three flatnesses, default weights, and a 3-gram over the whole dictionary. With files of
    logits, as `b2t eval --logits` writes them: theirs, and a 3-gram of the table's other sentences.
    """
    rows = []
    for name, said, trials, search in from_files(labels, logits) if logits else at_flatnesses(labels, sentences):
        base = None
        for beam, silence in product(map(int, beams.split(",")), map(float, silences.split(","))):
            config = SearchConfig(beam=beam, missing_silence=silence)
            found, seconds = timed(BeamSearch(search.lexicon, search.model, config), trials)
            counts = counts_of(said, best(found))
            base = base or counts
            rate, share = rate_of(counts), ratio(counts, base)
            rows.append({"logits": name, "beam": beam, "missing_silence": silence, **row_of(rate),
                         "ratio": share, "milliseconds": 1000 * seconds / len(trials)})
            of_first = f"{share['ratio']:.2f} ({share['low']:.2f}-{share['high']:.2f}) of the first's"
            took = f"{rows[-1]['milliseconds']:.0f} ms a sentence"
            print(f"{name:7} {beam:4} {silence:g}  {rate}, {of_first}, {took}", flush=True)
    save(json, rows)


def at_flatnesses(labels: Path, sentences: int) -> Iterator[Heard]:
    "Scored sentences with simulated logits."
    scored, tuned_on, text = divided(labels)
    search = BeamSearch(build_lexicon(), build(text, scored + tuned_on))
    for flatness in ("sharp", "middle", "flat"):
        noise = Noise(flatness=flatness)
        yield flatness, scored[:sentences], calibrated(scored[:sentences], 11, tuned_on, noise), search


def from_files(labels: Path, logits: Sequence[Path]) -> Iterator[Heard]:
    "The logits of decoders, and their sentences."
    heard = {path.stem: [trial for trial in read_trials(path) if trial.truth] for path in logits}
    said = {normalise(trial.truth, True) for trials in heard.values() for trial in trials}
    text = [one for part in divided(labels) for one in part if one not in said]
    search = BeamSearch(build_lexicon(), build(text, sorted(said)))
    for name, trials in heard.items():
        true, rows = [normalise(trial.truth, True) for trial in trials], [trial.logits for trial in trials]
        yield name, true, calmed(rows, rows, true), search
