"""Choose the search's default weights: how far is each choice from the best one of each network?

    python benchmarks/search_defaults.py LABELS.csv [--logits val/logits.hdf5] [--sentences 50] [--judge 1426]
                                         [--json FILE]

Simulated networks at three flatnesses, with half and twice the errors, one of them also more and less confident (its
logits times 1.5 and 0.6), with a 3-gram over the whole dictionary; one with the small default language model; and,
where `--logits` names the validation logits of a run on simulated recordings (`b2t demo`), a real network's.
Each is decoded with every blank penalty and missing silence of a grid, and the lists are ranked with every
acoustic scale and word bonus. A choice is judged by its mean excess: its word error rate divided by the best one
of that network, both plus 0.3 %, averaged over the networks. Then the first choices and the defaults decode `--judge`
other sentences, on which nothing was chosen, at three flatnesses.
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np
from decoding_task import best, build, counts_of, divided, options_of, ratio, row_of, save, spoken

from b2t_kit.decode.beam_search import BeamSearch
from b2t_kit.decode.hypotheses import SearchConfig
from b2t_kit.decode.pipeline import words_in
from b2t_kit.decode.sources import read_trials
from b2t_kit.decode.tune import Lists
from b2t_kit.lm.lexicon import Lexicon, build_lexicon
from b2t_kit.lm.ngram import LanguageModel
from b2t_kit.lm.ngram_build import default_language_model
from b2t_kit.simulate.logits import Noise
from b2t_kit.simulate.sentences import draw_sentence
from b2t_kit.text.metrics import rate_of

SCALES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
BONUSES = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
PENALTIES, MISSING = (3.0, 9.0, 30.0, 90.0), (0.0, -1.0)
NOISES = {"middle": Noise(), "sharp": Noise(flatness="sharp"), "flat": Noise(flatness="flat"),
          "half": Noise(errors=0.5), "double": Noise(errors=2)}
Case = tuple[BeamSearch, list[np.ndarray], list[str]]


def small_search(sentences: list[str]) -> BeamSearch:
    "A search with the default language model, made without some sentences."
    model = default_language_model(sentences)
    return BeamSearch(build_lexicon(words_in(model)), model)


def cases(labels: Path, logits: Path | None, count: int, folder: Path) -> dict[str, Case]:
    "The networks: each with its search, logits and sentences."
    scored, tuned_on, text = divided(labels)
    lexicon: Lexicon = build_lexicon()
    model: LanguageModel = build(text, scored + tuned_on, folder, 3)
    large, said = BeamSearch(lexicon, model), tuned_on[:count]
    found = {name: (large, spoken(said, 3, noise), said) for name, noise in NOISES.items()}
    for factor in (1.5, 0.6):
        found[f"middle, x{factor}"] = (large, [factor * one for one in found["middle"][1]], said)
    generator = np.random.default_rng(7)
    simulated = [draw_sentence(generator, held_out=True) for _ in range(count)]
    found["small"] = (small_search(simulated), spoken(simulated, 3), simulated)
    if logits is not None:
        trials = [trial for trial in read_trials(logits) if trial.truth][:count]
        truths = [trial.truth for trial in trials]
        found["network"] = (small_search(truths), [trial.logits for trial in trials], truths)
    return found


def surfaces(case: Case) -> np.ndarray:  # (penalties, missing, scales, bonuses) word error rates
    "Every choice of weights for one network."
    search, trials, truths = case
    found = []
    for penalty, missing in itertools.product(PENALTIES, MISSING):
        config = SearchConfig(0.6, penalty, 0.0, missing, beam=60)
        search.config = search.proposer.config = config
        lists = Lists([search.decode(one) for one in trials], truths)
        found.append(lists.surface(SCALES, BONUSES))
    return np.array(found).reshape(len(PENALTIES), len(MISSING), len(SCALES), len(BONUSES))


def main() -> None:
    options = options_of(__doc__, logits=Path, sentences=50, judge=1426).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = cases(options.labels, options.logits, options.sentences, Path(folder))
    rates = {name: surfaces(case) for name, case in found.items()}
    print(report := summary(rates))
    large = found["middle"][0]
    judged = judge(large, divided(options.labels)[0][: options.judge], first_choices(rates))
    save(options.json, {"scales": SCALES, "bonuses": BONUSES, "penalties": PENALTIES, "missing": MISSING,
                        "rates": {name: one.round(5).tolist() for name, one in rates.items()}, "summary": report,
                        "judged": judged}, indent=None)


def first_choices(rates: dict[str, np.ndarray], count: int = 4) -> list[SearchConfig]:
    "The weights with the least mean excess."
    order = np.argsort(excess_of(rates), axis=None)[:count]
    found = [np.unravel_index(at, excess_of(rates).shape) for at in order]
    return [SearchConfig(SCALES[scale], PENALTIES[penalty], BONUSES[bonus], MISSING[missing])
            for penalty, missing, scale, bonus in found]


def judge(search: BeamSearch, sentences: list[str], choices: list[SearchConfig]) -> list[dict]:
    "Word errors of the defaults and the choices on other sentences."
    rows = []
    for flatness in ("sharp", "middle", "flat"):
        trials, base = spoken(sentences, 11, Noise(flatness=flatness)), None
        for config in (SearchConfig(), *choices):
            counts = counts_of(sentences, best(BeamSearch(search.lexicon, search.model, config).decode_many(trials)))
            base = base or counts
            weights = [config.acoustic_scale, config.blank_penalty, config.word_bonus, config.missing_silence]
            rate, share = rate_of(counts), ratio(counts, base)
            rows.append({"flatness": flatness, "weights": weights, **row_of(rate), "ratio": share})
            of_defaults = f"{share['ratio']:.2f} ({share['low']:.2f}-{share['high']:.2f}) of the defaults'"
            print(f"{flatness:7} {weights}  {rate}, {of_defaults}")
    return rows


def excess_of(rates: dict[str, np.ndarray]) -> np.ndarray:
    "Mean excess of each choice."
    return sum((one + 0.003) / (one.min() + 0.003) for one in rates.values()) / len(rates)


def summary(rates: dict[str, np.ndarray], shown: int = 8) -> str:
    "The best choices, the kit's defaults, and its previous defaults."
    excess = excess_of(rates)
    order = [np.unravel_index(at, excess.shape) for at in np.argsort(excess, axis=None)[:shown]]
    default = SearchConfig()
    for scale, penalty, bonus, missing in (
            (default.acoustic_scale, default.blank_penalty, default.word_bonus, default.missing_silence),
            (0.5, 3.0, 0.0, -1.0)):
        order.append((PENALTIES.index(penalty), MISSING.index(missing), SCALES.index(scale), BONUSES.index(bonus)))
    lines = ["scale penalty bonus missing  mean excess  " + "  ".join(rates)]
    best = "  ".join(f"{100 * one.min():.1f}" for one in rates.values())
    lines.append(f"best of each network {best}")
    for at in order:
        each = "  ".join(f"{100 * one[at]:.1f}" for one in rates.values())
        lines.append(f"{SCALES[at[2]]:g} {PENALTIES[at[0]]:g} {BONUSES[at[3]]:g} {MISSING[at[1]]:g}  "
                     f"{excess[at]:.3f}  {each}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
