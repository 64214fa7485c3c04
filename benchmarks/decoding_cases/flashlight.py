"""The kit's search beside flashlight-text (torchaudio's decoder), on the same logits with the same model and words.

    pip install flashlight-text==0.0.7 wordfreq==3.1.1     # Python 3.12 or older; for this comparison only
"""
import csv
import itertools
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from decoding_cases.task import best, build, row_of, save

from b2t_kit.core.files import load_json
from b2t_kit.core.settings import to_dict
from b2t_kit.decode.search import BeamSearch, SearchConfig, default_weights, log_probs
from b2t_kit.decode.tune import halves
from b2t_kit.lm.model import LanguageModel
from b2t_kit.lm.arpa import write_arpa
from b2t_kit.simulate.logits import Noise, noisy_logits
from b2t_kit.speech.calibrate import fit_temperature, tempered
from b2t_kit.lexicon.g2p import dictionary
from b2t_kit.lexicon.lexicon import Lexicon, build_lexicon
from b2t_kit.text.metrics import compare, count_edits, rate_of
from b2t_kit.text.phonemes import BLANK, PHONEMES, SILENCE, normalise, to_ids

LOG10 = math.log(10)
CLASSES = (10, 41)  # likeliest classes of a frame that flashlight-text tries: as is advised, and all
WEIGHTS = (0.75, 1.0, 1.35)  # of the language model, relative to that of the kit
BONUSES = (-1.0, 0.0, 1.0)  # word bonuses
# what the kit's search is set to when it is tuned as well: as many settings as flashlight-text has
SCALES = (0.6, 0.8, 1.0)  # acoustic scales
DEMANDS = ((-20.0, 10.0), (-1000.0, 20.0))  # price of a missing silence, with how far behind a phoneme may be


def flashlight(labels: Path, validation: Path, /, *, sizes: str = "3.7k,20k,126k", beam: int = 200,
               flatness: str = "middle", every: int = 1, json: Path | None = None) -> None:
    """Compare the search, as it is by default, with flashlight-text at three sizes of vocabulary.

    VALIDATION is a list of trials with `session`, `sentence` and `phonemes`; LABELS gives the 3-gram its text, without
    those sentences. The vocabulary is the text's own words, these and the commonest ones of English (20,000 together),
    or the whole dictionary. The sentences become noisy logits, one gain a day. Every second day chooses the temperature
    and the weights of flashlight-text (as many classes, language weight and word bonus as in `CLASSES`, `WEIGHTS`,
    `BONUSES`); the others are scored. The kit's search is scored as it is by default, and as chosen from as many settings
    on the same days (`SCALES`, `BONUSES`, `DEMANDS`). flashlight-text's words end in a silence, without which it loses their last phonemes. Seconds
    are processor seconds a sentence, the two searches in turns; the kit's include the exact scores and times of
    its list. --every takes every so many trials.
    """
    rows = load_json(validation)[::every]
    said = [normalise(row["sentence"], True) for row in rows]
    days = [row["session"] for row in rows]
    names = sorted(set(days))
    phonemes = [to_ids(row["phonemes"]) for row in rows]
    trials = [noisy_logits(one, np.random.default_rng([0, number]), Noise(flatness=flatness), names.index(day))
              for number, (one, day) in enumerate(zip(phonemes, days))]
    choosing = np.flatnonzero(halves(days) == 0)
    judging = np.flatnonzero(halves(days) == 1)
    fitted = fit_temperature([trials[at] for at in choosing], [phonemes[at] for at in choosing])
    trials = [tempered(one, fitted.temperature) for one in trials]
    with open(labels, newline="", encoding="utf-8") as file:
        text = sorted({normalise(row["sentence_label"], True) for row in csv.DictReader(file)} - {"", *said})
    found = {}
    for size, words in vocabularies(text).items():
        if size not in sizes.split(","):
            continue
        model = build(text, said, vocabulary=words)
        lexicon = build_lexicon(words)
        with tempfile.TemporaryDirectory() as folder:
            path = write_arpa(model, Path(folder) / "model.arpa")
            found[size] = one_size(lexicon, model, path, trials, said, choosing, judging, beam)
        print(size, found[size], flush=True)
        save(json, {"flatness": flatness, "beam": beam, "temperature": fitted.temperature, "sizes": found})


def vocabularies(text: list[str]) -> dict[str, list[str]]:
    "The words of each size; those of the text are in all of them."
    from wordfreq import top_n_list

    known = dictionary()
    own = sorted({word for one in text for word in one.split()} & set(known))
    common = [word for word in top_n_list("en", 60_000) if word in known and word not in set(own)]
    return {"3.7k": own, "20k": sorted(own + common[: 20_000 - len(own)]), "126k": list(known)}


class Flashlight:
    "The lexicon decoder of flashlight-text."

    def __init__(self, lexicon: Lexicon, model: LanguageModel, path: Path, beam: int) -> None:
        from flashlight.lib.text.decoder import KenLM, SmearingMode, Trie
        from flashlight.lib.text.dictionary import Dictionary

        self.lexicon, self.beam = lexicon, beam
        self.names = Dictionary()
        for word in lexicon.words:
            self.names.add_entry(word)
        self.model = KenLM(str(path), self.names)
        self.trie = Trie(len(PHONEMES), SILENCE)
        unigrams = model.unigrams[model.numbers(lexicon.words)] / LOG10
        # a node takes six words, so the likeliest come first
        for word, form in sorted(lexicon.entries, key=lambda entry: -unigrams[entry[0]]):
            self.trie.insert([*map(int, form), SILENCE], int(word), float(unigrams[word]))
        self.trie.smear(SmearingMode.MAX)

    def configure(self, classes: int, weight: float, bonus: float) -> None:
        "Set how many classes of a frame are tried, the weight of ln P of the words, and the word bonus."
        from flashlight.lib.text.decoder import CriterionType, LexiconDecoder, LexiconDecoderOptions

        ours = SearchConfig()
        self.penalty = math.log(ours.blank_penalty)
        self.options = LexiconDecoderOptions(
            self.beam, classes, ours.threshold / ours.acoustic_scale, weight * LOG10, bonus, -math.inf, 0.0, True,
            CriterionType.CTC)
        self.decoder = LexiconDecoder(self.options, self.trie, self.model, SILENCE, BLANK, -1, [], False)

    def sentence(self, logits: np.ndarray) -> str:
        "Return the best sentence; empty if there is none."
        rows = np.ascontiguousarray(log_probs(logits, self.penalty), np.float32)
        results = self.decoder.decode(rows.ctypes.data, *rows.shape)
        words = results[0].words if results else []
        return " ".join(self.lexicon.words[word] for word in words if word >= 0)


def one_size(lexicon: Lexicon, model: LanguageModel, path: Path, trials: list[np.ndarray], said: list[str],
             choosing: np.ndarray, judging: np.ndarray, beam: int) -> dict:
    "Errors and seconds of both over one vocabulary, and what flashlight-text was set to."
    theirs = Flashlight(lexicon, model, path, beam)
    config = replace(default_weights(lexicon), beam=beam)
    ours = BeamSearch(lexicon, model, config)

    def counts(trials_of: np.ndarray, sentences: list[str]):
        return count_edits([said[at].split() for at in trials_of], [one.split() for one in sentences])

    def errors_of(setting: tuple[int, float, float]) -> int:
        theirs.configure(*setting)
        return int(counts(choosing, [theirs.sentence(trials[at]) for at in choosing]).edits.sum())

    def counts_with(config: SearchConfig, trials_of: np.ndarray):
        found = BeamSearch(lexicon, model, config).decode_many([trials[at] for at in trials_of], 1)
        return counts(trials_of, best(found))

    choices = [replace(config, acoustic_scale=scale, word_bonus=bonus, missing_silence=silence, token_threshold=behind)
               for scale, bonus, (silence, behind) in itertools.product(SCALES, BONUSES, DEMANDS)]
    chosen = min(choices, key=lambda one: int(counts_with(one, choosing).edits.sum()))
    tuned = counts_with(chosen, judging)

    weights = [factor / config.acoustic_scale for factor in WEIGHTS]
    setting = min(itertools.product(CLASSES, weights, BONUSES), key=errors_of)
    theirs.configure(*setting)
    ours.decode(trials[0])  # compiles
    heard: dict[str, list[str]] = {"ours": [], "theirs": []}
    seconds = {"ours": 0.0, "of it the list": 0.0, "theirs": 0.0}
    for at in judging:
        start = time.process_time()
        rows = ours.log_probs(trials[at])
        proposed = ours.propose(rows)
        middle = time.process_time()
        heard["ours"] += best([ours.scored(rows, proposed)])
        end = time.process_time()
        heard["theirs"].append(theirs.sentence(trials[at]))
        seconds["theirs"] += time.process_time() - end
        seconds["ours"] += end - start
        seconds["of it the list"] += end - middle
    mine, other = (counts(judging, heard[name]) for name in ("ours", "theirs"))
    gaps = {name: compare(other, one) for name, one in (("difference", mine), ("tuned difference", tuned))}
    words = [word for at in judging for word in said[at].split()]
    return {
        "words": len(lexicon), "unknown": sum(word not in lexicon for word in words) / len(words),
        "ours": row_of(rate_of(mine)), "theirs": row_of(rate_of(other)),
        "ours tuned": row_of(rate_of(tuned)), "ours chosen": to_dict(chosen),
        **{name: {"points": 100 * gap.difference, "low": 100 * gap.low, "high": 100 * gap.high}
           for name, gap in gaps.items()},
        "seconds": {name: total / len(judging) for name, total in seconds.items()},
        "setting": dict(zip(("classes", "weight", "bonus"), setting))}
