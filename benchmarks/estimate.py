"""Temperatures without labels, and words by them: `python benchmarks/estimate.py`, some minutes."""

import numpy as np

from b2t_kit.decode.decode import choose_words
from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.simulate.logits import BEHIND, Noise, noisy_logits
from b2t_kit.text.english import draw_sentence
from b2t_kit.speech.calibrate import estimate_temperature, fit_temperature, tempered
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.text.metrics import count_edits
from b2t_kit.text.phonemes import normalise, to_ids

HALF = 120  # sentences to fit to, and as many to score


def with_dead_frames(trials: list[np.ndarray]) -> list[np.ndarray]:
    "Return the trials with one frame in twenty in which all classes are alike."
    generator = np.random.default_rng(0)
    changed = []
    for logits in trials:
        logits = logits.copy()
        logits[generator.permutation(len(logits))[: max(1, len(logits) // 20)]] = 0
        changed.append(logits)
    return changed


def main() -> None:
    "Print fitted and estimated temperatures, and word errors, of networks of four kinds of certainty."
    BEHIND["as sure where wrong"] = 1.0  # type: ignore[index]
    generator = np.random.default_rng(11)
    sentences = [draw_sentence(generator, held_out=True) for _ in range(2 * HALF)]
    said = [to_ids(sentence_to_phonemes(sentence)) for sentence in sentences]
    truths = [normalise(sentence).split() for sentence in sentences[HALF:]]
    words = choose_words(None)
    for name in BEHIND:
        generator = np.random.default_rng(5)
        noise = Noise(flatness=name)
        plain = [noisy_logits(one, generator, noise, day=number // 30) for number, one in enumerate(said)]
        for kind, trials in {"all frames": plain, "5 % dead": with_dead_frames(plain)}.items():
            fitted = fit_temperature(trials[:HALF], said[:HALF]).temperature
            estimated = estimate_temperature(trials[HALF:]).temperature
            rates = []
            search = BeamSearch(*words, SearchConfig(beam=60))
            for temperature in (fitted, estimated):
                decoded = [search.sentence(tempered(logits, temperature)).split() for logits in trials[HALF:]]
                rates.append(100 * count_edits(truths, decoded).edits.sum() / sum(map(len, truths)))
            print(f"{name:20} {kind:11} fitted {fitted:.2f}, estimate / fitted {estimated / fitted:.2f}, "
                  f"word errors {rates[0]:.1f} and {rates[1]:.1f} %", flush=True)


if __name__ == "__main__":
    main()
