"""Questions about decoding, each a case: `python benchmarks/decoding.py CASE LABELS.csv [OPTIONS]`.

`python benchmarks/decoding.py CASE --help` says what a case compares and lists its options. `--json FILE` keeps the
results; those that are recorded in results/ have the commands of the pages (README.md).
"""
import sys
from importlib import import_module
from inspect import getdoc

CASES = {  # case -> module in decoding_cases/ that holds the function of its name, question
    "words": ("words", "How much does a language model help?"),
    "confidence": ("words", "How often are words of a confidence right?"),
    "general_model": ("general_model", "What does general English add to a model of the sentences?"),
    "whole_split": ("words", "How long does it take to decode the test split?"),
    "search_defaults": ("settings", "Which weights should the search have by default?"),
    "calibration": ("calibration", "What do words cost if a network is surer, and what does a temperature mend?"),
    "beams": ("settings", "What is a wider beam worth, or a dearer missing silence?"),
    "hotwords": ("settings", "Are words that nothing else knows found if they are in a list, and what does it cost?"),
    "settings": ("settings", "What does blank skipping cost and save?"),
    "rescoring": ("large_models", "What does rescoring with a causal model gain?"),
    "real_lists": ("real_lists", "What do rescoring and weighted votes gain on lists of a real decoder?"),
    "writing": ("large_models", "How should a causal model be given sentences?"),
    "large_vocabulary": ("sizes", "Does a model of ten million n-grams over the whole dictionary fit into 4 GB?"),
    "kenlm_files": ("sizes", "What do KenLM's files cost, and are their scores and sentences the same?"),
}


def main() -> None:
    case, *rest = sys.argv[1:] or [""]
    if case not in CASES:
        print(__doc__, *(f"{name:18}{question}" for name, (_, question) in CASES.items()), sep="\n")
        raise SystemExit(case not in ("", "-h", "--help"))
    import tyro  # not needed by the processes that a case starts, whose memory is measured

    work = getattr(import_module(f"decoding_cases.{CASES[case][0]}"), case)
    if {"-h", "--help"} & {*rest}:
        print(getdoc(work), end="\n\n")  # tyro would wrap the lines of a table
    tyro.cli(work, args=rest, prog=f"decoding.py {case}", description="")


if __name__ == "__main__":
    main()
