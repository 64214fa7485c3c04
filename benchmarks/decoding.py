"""Questions about decoding, each a case: `python benchmarks/decoding.py CASE LABELS.csv [OPTIONS]`.

`python benchmarks/decoding.py CASE --help` says what a case compares and lists its options. `--json FILE` keeps the
results; those that are recorded in results/ have the commands of the pages (README.md).
"""
import sys
from importlib import import_module
from inspect import getdoc

CASES = {  # case, its function in the module of decoding_cases/ -> module, question
    "words": ("words", "How much does a language model help?"),
    "chosen": ("chosen", "Are the words that are taken without --lm as good as those of the best model made by hand?"),
    "hotwords": ("hotwords", "Are words that nothing else knows found if they are in a list, and what does it cost?"),
    "flashlight": ("flashlight", "Is the search as good and as fast as flashlight-text, at three sizes of vocabulary?"),
    "large_vocabulary": ("large_vocabulary", "Does a model of ten million n-grams over all words fit into 4 GB?"),
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
