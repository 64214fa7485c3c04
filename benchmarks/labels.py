"""Write LABELS.csv, the table of sentences that other benchmarks take: `python benchmarks/labels.py DATA LABELS.csv`.

DATA holds the T15 recordings (`b2t fetch`), of which only the sentences of the training split are read. The columns are
those of the published table: session, block_num, trial_num, sentence_label, phonemes.
"""
import argparse
import csv
from pathlib import Path

from b2t_kit.data.dataset import Recordings
from b2t_kit.text.phonemes import to_phonemes

COLUMNS = ("session", "block_num", "trial_num", "sentence_label", "phonemes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with Recordings(options.data, "train") as recordings, options.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for index, info in enumerate(recordings.infos):
            phonemes = " ".join(to_phonemes(recordings.labels(index).tolist()))
            table.writerow([info.session, info.block, info.number, info.sentence, phonemes])


if __name__ == "__main__":
    main()
