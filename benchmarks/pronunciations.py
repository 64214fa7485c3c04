"""How good are the pronunciations?

    python benchmarks/pronunciations.py [--labels t15_train_labels.csv] [--json FILE]

1. Letter to sound: 2,000 dictionary words are kept from the letter model, which then pronounces
   them. Phoneme error rate against the closest pronunciation of the dictionary and against its
   first; share of words without error; words per CPU second.
2. With --labels, a CSV with the columns sentence_label and phonemes: how far sentence_to_phonemes
   agrees with these labels, per phoneme, per word and per sentence, and where not.
"""

import argparse
import csv
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np

from b2t_kit.text.g2p import dictionary
from b2t_kit.text.metrics import edit_distance
from b2t_kit.text.g2p import LetterModel, spelled_words
from b2t_kit.text.metrics import error_rate
from b2t_kit.text.phonemes import normalise, split_words
from b2t_kit.text.g2p import sentence_to_phonemes


def letter_to_sound(words: int = 2000, seed: int = 1) -> dict:
    "Scores on dictionary words the model has not seen."
    entries, spelled = dictionary(), spelled_words()
    held_out = np.random.default_rng(seed).permutation(sorted(entries))[:words].tolist()
    hidden = set(held_out)
    start = time.process_time()
    model = LetterModel({word: cut for word, cut in spelled.items() if word not in hidden})
    learning = time.process_time() - start

    start = time.process_time()
    guesses = [model.guess(word) for word in held_out]
    guessing = time.process_time() - start

    forms = [[form.split() for form in entries[word].split("\t")] for word in held_out]
    nearest = [min(options, key=lambda form: edit_distance(form, guess))
               for options, guess in zip(forms, guesses)]
    closest = error_rate(nearest, guesses)
    right = sum(tuple(form) == guess for form, guess in zip(nearest, guesses))
    return {
        "held_out_words": words,
        "per_closest": round(closest.rate, 4),
        "per_closest_interval": [round(closest.low, 4), round(closest.high, 4)],
        "per_first": round(error_rate([options[0] for options in forms], guesses).rate, 4),
        "words_right": round(right / words, 4),
        "learning_cpu_seconds": round(learning, 2),
        "words_per_cpu_second": round(words / guessing),
    }


def agreement(path: Path) -> dict:
    "How far the kit's labels agree with those of a file."
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    references = [row["phonemes"].split() for row in rows]
    ours = [sentence_to_phonemes(row["sentence_label"]) for row in rows]
    rate = error_rate(references, ours)
    words, equal, differences = 0, 0, Counter()
    for row, reference, found in zip(rows, references, ours):
        spelling = normalise(row["sentence_label"], map_apostrophes=True).split()
        pair = split_words(reference), split_words(found)
        words += len(spelling)
        if len(pair[0]) == len(pair[1]) == len(spelling):
            equal += sum(a == b for a, b in zip(*pair))
            differences.update((word, " ".join(a), " ".join(b))
                               for word, a, b in zip(spelling, *pair) if a != b)
    return {
        "sentences": len(rows),
        "phonemes_different": round(rate.rate, 5),
        "phonemes_different_interval": [round(rate.low, 5), round(rate.high, 5)],
        "words_equal": round(equal / words, 4),
        "sentences_equal": round(sum(a == b for a, b in zip(references, ours)) / len(rows), 4),
        "most_common": [{"word": word, "label": label, "ours": own, "times": times}
                        for (word, label, own), times in differences.most_common(20)],
        "unknown_words": sorted({word for row in rows for word in
                                 normalise(row["sentence_label"], map_apostrophes=True).split()
                                 if word not in dictionary()}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--labels", type=Path, help="CSV with sentence_label and phonemes")
    parser.add_argument("--json", type=Path, help="write the results there too")
    options = parser.parse_args()
    results = {"letter_to_sound": letter_to_sound()}
    if options.labels:
        results["label_agreement"] = agreement(options.labels)
    text = json.dumps(results, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
