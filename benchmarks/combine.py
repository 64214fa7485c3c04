"""What a vote over texts gives on real outputs: `python benchmarks/combine.py VALIDATION.json`

The file has a list of trials, each with its true `sentence` and, under the name of a family of decoders, the sentences
of several seeds (public outputs for the T15 validation trials). Draws of three and five of the ten are averaged.
Recorded in benchmarks/combine.md.
"""
import argparse
import json
from pathlib import Path

import numpy as np

from b2t_kit.output.combine import combine_votes

DRAWS = 10  # of fewer seeds than there are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--families", nargs="*", default=["gru", "gru_without_llm"])
    options = parser.parse_args()
    trials = json.loads(options.file.read_text(encoding="utf-8"))
    references = {(number,): trial["sentence"] for number, trial in enumerate(trials)}
    generator = np.random.default_rng(0)

    def seed(family: str, which: int) -> dict:
        return {(number,): [(trial[family][which], 1.0)] for number, trial in enumerate(trials)}

    print(f"{len(trials)} trials\n\n| seeds of | one, mean | best one | three | five | all | best of all |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    everybody = {}
    for family in options.families:
        seeds = {f"{family} {which}": seed(family, which) for which in range(len(trials[0][family]))}
        everybody |= seeds
        together = combine_votes(seeds, references)
        rates = [100 * rate.rate for rate in together.singles.values()]
        drawn = []
        for count in (3, 5):
            draws = [generator.choice(list(seeds), count, replace=False) for _ in range(DRAWS)]
            drawn.append(np.mean([100 * combine_votes({name: seeds[name] for name in draw}, references).together.rate
                                  for draw in draws]))
        print(f"| {family} | {np.mean(rates):.2f} | {min(rates):.2f} | {drawn[0]:.2f} | {drawn[1]:.2f} "
              f"| {100 * together.together.rate:.2f} | {100 * together.best.rate:.2f} |")
    together = combine_votes(everybody, references)
    print(f"| all | | | | | {100 * together.together.rate:.2f} | {100 * together.best.rate:.2f} |")


if __name__ == "__main__":
    main()
