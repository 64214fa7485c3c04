"""Measure how a causal language model should be given sentences: perplexity per word by what stands before and after.

    python benchmarks/writing.py LABELS.csv --llm FOLDER [--sentences 250] [--models DIR] [--json FILE]

The sentences are the 250 for tuning of words.py; --models takes the 3-grams of general_model.py, whose shares were
found on the same 250 sentences, and compares them on the same events: every word, and the end of every sentence.

as before    the tokenizer's token for the beginning, capitals, and a full stop as the only end
. ? !        the same with any of the three marks as its end, their probabilities added
all ends     the same with everything that ends a sentence
chosen       the writing that `load_scorer` chooses on the kit's own sentences, and uses from then on
"""

import math
from dataclasses import replace
from pathlib import Path

from decoding_task import divided, options_of, save

from b2t_kit.llm.scores import load_scorer, word_perplexity, writings_of
from b2t_kit.lm.arpa import read_language_model
from b2t_kit.lm.ngram import sentence_scores


def main() -> None:
    options = options_of(__doc__, needed=["llm"], llm=Path, sentences=250, models=Path).parse_args()
    said = divided(options.labels)[1][: options.sentences]
    scorer = load_scorer(options.llm)
    chosen, tried = scorer.writing, scorer.readings
    print("on the kit's sentences", *tried, sep="\n", flush=True)
    plain = writings_of(scorer.tokenizer)[0]
    found: dict[str, dict] = {}

    def measure(name: str, writing) -> None:
        scorer.write(writing)
        found[name] = {"start": writing.start, "capitals": writing.capitals, "ends": list(writing.ends),
                       "perplexity": word_perplexity(scorer, said)}
        print(f"{found[name]['perplexity']:10.1f}  {name}: {writing.start!r}, capitals {writing.capitals}", flush=True)

    measure("as before", replace(plain, ends=(".",)))
    measure(". ? !", replace(plain, ends=(".", "?", "!")))
    measure("all ends", plain)
    measure("chosen", chosen)
    measure("chosen, full stop only", replace(chosen, ends=(".",)))
    for reading in tried[:3]:
        case = "capitals" if reading.writing.capitals else "lower case"
        measure(f"{reading.writing.start!r} {case}", reading.writing)
    measure("chosen, other case", replace(chosen, capitals=not chosen.capitals))
    words = sum(len(one.split()) for one in said)
    for path in sorted(options.models.glob("*.b2tlm")) if options.models else ():
        total = float(sentence_scores(read_language_model(path), said).sum())
        found[path.name] = {"perplexity": math.exp(-total / words)}
        print(f"{found[path.name]['perplexity']:10.1f}  {path.name}", flush=True)
    chosen_on = [{"start": one.writing.start, "capitals": one.writing.capitals, "perplexity": one.perplexity}
                 for one in tried]
    save(options.json, {"model": options.llm.name, "sentences": len(said), "words": words, "rows": found,
                        "chosen_on": chosen_on})


if __name__ == "__main__":
    main()
