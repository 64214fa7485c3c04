"The words that are taken without --lm, against those of before and the best model made by hand."
import tempfile
from pathlib import Path

import numpy as np
from decoding_cases.task import best, build, counts_of, divided, ratio, row_of, save, spoken, temperature_of, timed

from b2t_kit.decode import words
from b2t_kit.decode.search import BeamSearch, SearchConfig
from b2t_kit.lm.build import train_language_model
from b2t_kit.lm.model import LanguageModel, perplexity
from b2t_kit.speech.sentences import mix_language_models
from b2t_kit.lm.kenlm import read_language_model
from b2t_kit.lm.sphinx import installed_english
from b2t_kit.simulate.logits import Noise
from b2t_kit.speech.calibrate import tempered
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.lexicon.lexicon import Lexicon, build_lexicon, missing_words
from b2t_kit.text.metrics import per, rate_of
from b2t_kit.text.phonemes import collapse, normalise, to_ids

HAND_MADE = "made by hand"


def chosen(labels: Path, /, *, levels: str = "0.05,0.35,1", sentences: int = 1426, training: int | None = None,
           json: Path | None = None) -> None:
    """Word errors of the same logits with the words that the kit chooses, and with others.

    Each scored sentence becomes simulated logits; a level multiplies their phoneme errors. All models know the same
    5,631 other sentences, or the first so many of them (training), and none of the scored ones; the search has its
    default weights.

    grammar            the simulator's 636 words, which were taken without --lm until November 2026
    training sentences what is taken without --lm where general English is not at hand
    with English       what is taken without --lm where pocketsphinx is installed
    English alone      what is taken without --lm where it is installed, and no training sentences are at hand
    neither            what is taken without --lm where neither is at hand
    only sentences     the training sentences without the simulator's; only words: all words equally likely
    made by hand       the sentences' 3-gram mixed with pocketsphinx's n-grams, shares found on 250 further sentences
    """
    scored, held_out, rest = divided(labels)
    scored, rest = scored[:sentences], rest[:training]
    if installed_english() is None:
        raise SystemExit("pip install pocketsphinx")
    models = {"grammar": words.made_up_words(scored), **made(scored, rest), HAND_MADE: by_hand(scored, held_out, rest)}
    facts = {}
    for name, (lexicon, model) in models.items():
        facts[name] = {"words": len(lexicon), "perplexity": perplexity(model, scored),
                       "missing": missing_words(lexicon, scored), "weights": model.origin.get("weights")}
        print(name, facts[name], flush=True)
    done = []
    for level in map(float, levels.split(",")):
        done.append(errors_at(level, scored, held_out, models))
        save(json, {"models": facts, "levels": done})


def made(scored: list[str], rest: list[str]) -> dict[str, tuple[Lexicon, LanguageModel]]:
    "What `choose_words` makes of the sentences, with and without general English."
    found = {}
    none = words.English("the simulator's sentences")
    english = words.find_english()
    for name, source, training in (("training sentences", none, rest), ("with English", english, rest),
                                   ("neither", none, []), ("English alone", english, [])):
        vocabulary = words.all_words(training)
        found[name] = build_lexicon(vocabulary), words.make_model(training, scored, vocabulary, source)
        if source is none:
            alone = [[normalise(one) for one in training] or vocabulary]
            model = train_language_model(alone, words.ORDER if training else 1, vocabulary=vocabulary)
            found["only sentences" if training else "only words"] = found[name][0], model
    return found


def by_hand(scored: list[str], held_out: list[str], rest: list[str]) -> tuple[Lexicon, LanguageModel]:
    "The mixture of `b2t lm mix`."
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [build(rest, scored + held_out), read_language_model(str(installed_english()))]
        parts[0].save(folder / "sentences.b2tlm")
        (folder / "held_out.txt").write_text("\n".join(held_out), encoding="utf-8")
        model = mix_language_models(parts, folder / "mixed.b2tlm", folder / "held_out.txt")
    return build_lexicon(), model


def errors_at(level: float, scored: list[str], held_out: list[str],
              models: dict[str, tuple[Lexicon, LanguageModel]]) -> dict:
    "The word errors of all models with one kind of noise."
    noise = Noise(errors=level)
    temperature = temperature_of(noise, held_out)
    trials = [tempered(one, temperature) for one in spoken(scored, np.random.default_rng(1), noise)]
    phonemes = per([to_ids(sentence_to_phonemes(one)) for one in scored], [collapse(one.argmax(1)) for one in trials])
    print(f"level {level:g}: phoneme error rate {phonemes}", flush=True)
    rows, counts = {}, {}
    for name, (lexicon, model) in models.items():
        found, seconds = timed(BeamSearch(lexicon, model, SearchConfig()), trials, threads=0)
        counts[name] = counts_of(scored, best(found))
        rows[name] = row_of(rate_of(counts[name])) | {"per_cpu_second": len(found) / seconds}
        print(f"{name:20}{rate_of(counts[name])}", flush=True)
    against = {name: ratio(counts[name], counts[HAND_MADE]) for name in counts}
    print("with English, of the errors by hand:", against["with English"], flush=True)
    return {"level": level, "sentences": len(scored), "per": phonemes.rate, "rows": rows, "against": against}
