"Sentences are read by one rule, and their tables by one reader: what others write, and what the kit makes of it."
from pathlib import Path

import numpy as np
import pytest
import torch

from b2t_kit.cli import main
from b2t_kit.core.errors import KitError
from b2t_kit.decode.sources import LogitsFile
from b2t_kit.decode.files import read_trials
from b2t_kit.decode.search import parse_hotwords
from b2t_kit.speech.sentences import load_sentences
from b2t_kit.lm.build import read_tokens
from b2t_kit.simulate.logits import noisy_sentence
from b2t_kit.lexicon.g2p import sentence_to_phonemes
from b2t_kit.text.phonemes import PHONEMES, normalise, remove_punctuation
from b2t_kit.text.tables import read_sentence, read_table

SAID = ("i don't know", "we can't go there now", "she said hello")
WRITTEN = {  # what was written -> a sentence that is said
    "curly": ("i don\u2019t know", SAID[0]),
    "opening mark": ("i don\u2018t know", SAID[0]),
    "letter apostrophe": ("i don\u02bct know", SAID[0]),
    "backtick": ("i don`t know", SAID[0]),
    "acute": ("i don\u00b4t know", SAID[0]),
    "prime": ("i don\u2032t know", SAID[0]),
    "misread UTF-8": ("i don\u00e2\u20ac\u2122t know", SAID[0]),
    "HTML": ("i don&#39;t&nbsp;know", SAID[0]),
    "HTML twice": ("i don&amp;#39;t know", SAID[0]),
    "no-break spaces": ("i\u00a0don't\u202fknow", SAID[0]),
    "wide spaces": ("i\u2003don't\u3000know", SAID[0]),
    "zero bytes": ("i\0don't\0know\0\0", SAID[0]),
    "control characters": ("i\x01don't\x7fknow\x1b", SAID[0]),
    "invisible": ("\ufeffi don\u200d't kn\u00adow", SAID[0]),
    "capitals": ("I DON'T KNOW!", SAID[0]),
    "em dash": ("she said\u2014hello", SAID[2]),
    "en dash": ("she said\u2013hello", SAID[2]),
    "double hyphen": ("she said--hello", SAID[2]),
    "lone hyphens": ("she said - hello -", SAID[2]),
    "dots": ("she said...hello", SAID[2]),
    "ellipsis": ("she\u2026said hello", SAID[2]),
    "comma": ("she,said,hello", SAID[2]),
    "slash": ("she/said hello", SAID[2]),
    "full stop": ("She said.Hello", SAID[2]),
    "quotes": ("she said 'hello'", SAID[2]),
    "curly quotes": ("she said \u2018hello\u2019", SAID[2]),
    "double quotes": ("\u201cshe\u201dsaid \u00abhello\u00bb", SAID[2]),
    "marks": ("<s>she said hello</s>", SAID[2]),
}
PLAIN = ("Bring it closer.", "First off we 'd probably wind up with a dud.", "I'm up there at my kids' school.",
         "[RIGHT HAND - CLOSE]", "a well-known man", "'Cause 'tis late.", "In the U.S. at 5 p.m.")
MISSING = ("nan", "NaN", "NULL", "null", "None", "N/A", "<NA>", "#N/A", "<unk>", "-", "\u2014")


def written(path: str, text: str) -> str:
    Path(path).write_text(text, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text, sentence", WRITTEN.values(), ids=WRITTEN)
def test_a_sentence_is_read_alike_everywhere(text, sentence, capsys):
    "Scores, labels, corpora and sentences to exclude."
    assert normalise(text) == sentence
    assert sentence_to_phonemes(text) == sentence_to_phonemes(sentence)
    assert read_tokens([[text]])[0][3:] == list(dict.fromkeys(sentence.split()))
    assert load_sentences(written("one.txt", f"{text}\n")) == [sentence]
    written("said.csv", f"id,text\n0,{sentence}\n")
    written("decoded.csv", f'id,text\n0,"{text}"\n')
    assert main(["score", "decoded.csv", "said.csv"]) == 0
    assert f"0/{len(sentence.split())} words" in capsys.readouterr().out


@pytest.mark.parametrize("text", PLAIN)
def test_plain_sentences_are_scored_as_published(text):
    assert normalise(text) == remove_punctuation(text)


@pytest.mark.parametrize("text", MISSING)
def test_a_missing_value_is_no_sentence(text, capsys):
    "It is no label, no vote and no corpus, and a score says so; the words null and none are words within a sentence."
    assert read_sentence(text) is None and read_sentence(f"it was {text}")
    written("said.csv", "id,text\n0,hello\n1,there\n")
    written("decoded.csv", f"id,text\n0,hello\n1,{text}\n")
    assert main("score decoded.csv said.csv".split()) == 0 and "line 3" in capsys.readouterr().out
    assert main("combine decoded.csv said.csv --out new.csv".split()) == 2
    assert "decoded.csv: line 3" in capsys.readouterr().err and not Path("new.csv").exists()
    assert load_sentences("decoded.csv") == ["hello"]
    written("corpus.txt", f"hello\n{text}\nhello\n")
    assert main("lm build corpus.txt --order 1 --out new.arpa".split()) == 0
    words = [line.split("\t")[1] for line in Path("new.arpa").read_text().split("\n") if "\t" in line]
    assert {*words} == {"<unk>", "<s>", "</s>", "hello"}


READ = {  # a file that holds the three sentences -> what is printed about it
    "a.csv": ("id,text\n0,{}\n1,{}\n2,{}\n", ""),
    "b.csv": ("ID;Text\n0;{}\n1;{}\n2;{}\n", ""),
    "c.tsv": ("utt\tpred\n0\t{}\n1\t{}\n2\t{}\n", "text in 'pred', ids in 'utt'"),
    "d.csv": ("id,reference,hypothesis\n0,x,{}\n1,y,{}\n2,z,{}\n", "text in 'hypothesis'"),
    "e.csv": ("text\n{}\n{}\n{}\n", "in the order of the lines"),
    "text": ("utt-1-0 {}\nutt-1-1 {}\nutt-1-2 {}\n", "the first word"),
    "f.txt": ("utt-1-0\t{}\nutt-1-1\t{}\nutt-1-2\t{}\n", "the first word"),
    "g.trn": ("{} (utt-1-0)\n{} (utt-1-1)\n{} (utt-1-2)\n", "in brackets"),
    "h.txt": ("{}\n{}\n{}\n", "a sentence a line"),
    "i.jsonl": ('{{"text": "x", "pred_text": "{}"}}\n{{"text": "y", "pred_text": "{}"}}\n{{"text": "z", "pred_text": "{}"}}\n',
                "text in 'pred_text'"),
    "j.jsonl": ('{{"id": 0, "nbest": [{{"text": "x", "score": -9}}, {{"text": "{}", "score": -1}}]}}\n'
                '{{"id": 1, "nbest": [{{"text": "{}", "score": -1}}]}}\n{{"id": 2, "nbest": [{{"text": "{}", "score": 0}}]}}\n', ""),
    "k.json": ('{{"0": "{}", "1": "{}", "2": "{}"}}', ""),
    "l.json": ('[{{"id": 0, "text": "{}"}}, {{"id": 1, "text": "{}"}}, {{"id": 2, "text": "{}"}}]', ""),
}


@pytest.mark.parametrize("name", READ)
def test_what_another_program_wrote_is_scored_and_voted_on(name, capsys):
    content, told = READ[name]
    written(name, content.format(*SAID))
    written("said.csv", "id,text\n" + "".join(f"{number},{text}\n" for number, text in enumerate(SAID)))
    assert main(["score", name, "said.csv"]) == 0
    shown = capsys.readouterr()
    assert "0/11 words" in shown.out and told in shown.err
    assert main(["combine", name, "said.csv", "--out", "new.csv"]) == 0
    assert [line.rpartition(",")[2] for line in Path("new.csv").read_text().split("\n")[1:-1]] == list(SAID)


SHUFFLED = {  # a file whose lines are in another order than the trials
    "ids.csv": "id,text\n2,{2}\n0,{0}\n1,{1}\n",
    "floating.csv": "id,text\n2.0,{2}\n0.0,{0}\n1.0,{1}\n",
    "floating.json": '[{{"id": 2.0, "text": "{2}"}}, {{"id": 0.0, "text": "{0}"}}, {{"id": 1.0, "text": "{1}"}}]',
    "files.csv": "id,text\n2.wav,{2}\n0.wav,{0}\n1.wav,{1}\n",
    "paths.csv": "file,text\nday/2.wav,{2}\nday/0.wav,{0}\nday/1.wav,{1}\n",
    "numbered.txt": "utt2 {2}\nutt0 {0}\nutt1 {1}\n",
    "short places.csv": "session,block,trial,file,text\nday,2,0,a.npy,{2}\nday,1,0,a.npy,{0}\nday,1,4,a.npy,{1}\n",
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_trials_are_found_by_their_numbers(name, capsys):
    written(name, SHUFFLED[name].format(*SAID))
    written("said.csv", "id,text\n" + "".join(f"{number},{text}\n" for number, text in enumerate(SAID)))
    assert main(["score", name, "said.csv"]) == 0 and "0/11 words" in capsys.readouterr().out
    assert main(["combine", name, "said.csv", "--out", "new.csv"]) == 0
    if name in ("ids.csv", "floating.csv", "floating.json", "files.csv"):
        assert Path("new.csv").read_text() == Path("said.csv").read_text(), "in the order of a submission"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_table_of_a_spreadsheet_is_read(encoding, capsys):
    Path("decoded.csv").write_bytes("id,text\r\n0,i don\u2019t know\r\n".encode(encoding))
    assert main(["score", "decoded.csv", written("said.csv", "id,text\n0,i don't know\n")]) == 0
    assert "0/3 words" in capsys.readouterr().out


@pytest.mark.parametrize("start, told", [(b"\x1f\x8b\x08", "compressed with gzip"), (b"caf\xe9", "save it as UTF-8")])
def test_what_is_no_text_is_named(start, told, capsys):
    Path("decoded.csv").write_bytes(start)
    assert main(["score", "decoded.csv", written("said.csv", "id,text\n0,no\n")]) == 2
    assert "decoded.csv: " in (line := capsys.readouterr().err) and told in line


REFUSED = {  # name -> content, what the message must have
    "numbers in another order.csv": ("trial_index,text\n2,a\n0,b\n1,c\n", "'trial_index' may name the trials"),
    "an index in another order.csv": (",text\n2,a\n0,b\n1,c\n", "the column without a name may name the trials"),
    "floats in another order.csv": ("row,text\n2.0,a\n0.0,b\n1.0,c\n", "'row' may name the trials"),
    "no block.csv": ("session,trial,text\nday,2,a\nday,0,b\nday,1,c\n", "'session' and 'trial' may name the trials"),
    "no header.txt": ("0,a\n1,b\n2,c\n", "line 1: begins with '0,a'"),
    "bars.txt": ("utt0|a\nutt1|b\nutt2|c\n", "line 1: begins with 'utt0|a'"),
    "a truth for an id.json": ('[{"id": true, "text": "a"}]', "entry 1: id is true"),
    "no text.csv": ("id,output\n0,a\n1,b\n2,c\n", "line 1: no column says"),
    "two texts.csv": ("id,pred,hyp\n0,a,a\n1,b,b\n2,c,c\n", "could both be meant"),
    "a reference.csv": ("id,sentence_label\n0,a\n1,b\n2,c\n", "no column says what was decoded"),
    "unknown names.csv": ("clip,text\na.wav,a\nb.wav,b\nc.wav,c\n", "'clip' may name the trials"),
    "no header.csv": ("0,a\n1,b\n2,c\n", "line 1: no column says"),
    "twice.csv": ("id,text\n0,a\n1,b\n1,c\n", "line 4: 1 appears twice"),
    "too few.csv": ("id,text\n0,a\n1,b\n", "has no row for 2"),
    "other ids.csv": ("id,text\n1,a\n2,b\n3,c\n", "has no row for 0"),
    "manifest.jsonl": ('{"audio_filepath": "a", "text": "a"}\n' * 3, "is what was said"),
    "a line without.jsonl": ('{"text": "x", "pred_text": "a"}\n{"text": "b"}\n{"text": "y", "pred_text": "c"}\n', "line 2: has no"),
    "null.jsonl": ('{"id": 0, "text": "a"}\n{"id": 1, "text": null}\n{"id": 2, "text": "c"}\n', "line 2: 'text' is null"),
    "a NaN.jsonl": ('{"id": 0, "nbest": [{"text": "a", "score": NaN}]}\n', "line 1: 'score' is not a number"),
    "another score.jsonl": ('{"id": 0, "nbest": [{"text": "a", "am": -1.5}]}\n', "line 1: no field is the score"),
    "not JSON.jsonl": ('{"id": 0, "text": "a"}\n{\n', "line 2: is not JSON"),
    "twice.txt": ("utt1 a\nutt1 b\nutt2 c\n", "line 2: utt1 appears twice"),
    "most.txt": ("utt1 a\nutt2 b\nc\n", "line 3: begins with 'c'"),
    "half.trn": ("a (utt-1)\nb\n", "line 2: does not end"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_asked_for(name, capsys):
    content, message = REFUSED[name]
    written(name, content)
    written("said.csv", "id,text\n0,a\n1,b\n2,c\n")
    for command in (["score", name, "said.csv"], ["combine", name, "said.csv", "--out", "new.csv"]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert name in told and message in told, told
    assert not Path("new.csv").exists()


def test_files_given_twice_or_written_over_are_refused(capsys):
    for name in ("a.csv", "b.csv", "c.csv"):
        written(name, f"id,text\n0,we\n1,{'you' if name == 'a.csv' else 'i'}\n")
    Path("link.csv").symlink_to("a.csv")
    for command in ("combine a.csv b.csv --out a.csv", "combine a.csv link.csv --out new.csv", "combine a.csv ./a.csv --out new.csv",
                    "combine a.csv b.csv --references c.csv --out c.csv", "score a.csv b.csv --json a.csv"):
        assert main(command.split()) == 2, command
    assert Path("a.csv").read_text() == "id,text\n0,we\n1,you\n" and not Path("new.csv").exists()
    capsys.readouterr()
    assert main("combine a.csv b.csv c.csv --out new.csv".split()) == 0
    assert "c.csv has the same sentences as b.csv" in capsys.readouterr().err


def test_trials_of_other_recordings_are_not_voted_on(capsys):
    "The ids of two tables agree, and session, block and trial beside them do not."
    for day in "ab":
        written(f"{day}.csv", f"id,text,session,block_num,trial_num\n0,nan,{day},1,1\n1,you,{day},1,2\n")
    assert main("combine a.csv b.csv --out new.csv".split()) == 2
    assert "b.csv: 0 is b 1 1, and a 1 1 in a.csv" in capsys.readouterr().err


OTHER_ROWS = {  # what became of a decoder's sentences -> what combine says, and what score says
    "as decoded": (lambda rows: rows, "", ""),
    "worse": (lambda rows: [row.replace("s ", " ") for row in rows], "", ""),
    "a row late": (lambda rows: ["nothing", *rows[:-1]], "if it were moved by 1 row", "if it were moved by 1 row"),
    "two rows early": (lambda rows: [*rows[2:], "no", "no"], "if it were moved by 2 rows", "if it were moved by 2 rows"),
    "from the end": (lambda rows: rows[::-1], "shares hardly a word", "12 of 12 sentences in c.csv fit other rows"),
    "sorted": (lambda rows: sorted(rows), "shares hardly a word", "sentences in c.csv fit other rows"),
    "one for all": (lambda rows: ["what else"] * len(rows), "shares hardly a word", "hardly a word of its reference"),
    "stopped": (lambda rows: [row if number < 6 else "" for number, row in enumerate(rows)], "have no words", "have no words"),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_sentences_of_other_rows_are_told(name, capsys):
    change, to_combine, to_score = OTHER_ROWS[name]
    nouns = "dog farm chair night river uncle mouth sugar north page storm boat".split()
    said = [f"{noun} {noun}s {noun}less" for noun in nouns]
    for file, rows in (("a", said), ("b", [row.replace("less", "ful") for row in said]), ("c", change(said))):
        written(f"{file}.csv", "id,text\n" + "".join(f"{number},{row}\n" for number, row in enumerate(rows)))
    capsys.readouterr()
    assert main("combine a.csv b.csv c.csv --out new.csv".split()) == 0
    told = capsys.readouterr().err
    assert to_combine in told and ("warning" in told) == (name not in ("as decoded", "worse", "stopped"))
    assert main("score c.csv a.csv".split()) == 0
    told = capsys.readouterr().out
    assert to_score in told and ("moved" in told) == ("moved" in to_score)


def test_phrases_of_hotwords(capsys):
    words = parse_hotwords(["New\u00a0York 2", "Bank of America", "plan B", "O\u2019Brien", "tomato T AH M AA T OW"], "names.txt")
    assert [one.word for one in words] == ["new", "york", "bank", "america", "plan", "b", "o'brien", "tomato"]
    assert [one.boost for one in words[:2]] == [2.0, 2.0] and words[-1].forms == (("T", "AH", "M", "AA", "T", "OW"),)
    assert "'new york'" in capsys.readouterr().err
    for phrase in ("New YORK", "NEW YORK", "new york", "Malcolm X"):
        assert [one.word for one in parse_hotwords([phrase])] == phrase.lower().split()
    for line, reason in {"anna AE N XX": "XX", "anna XX": "XX", "New York, NY": "york,", "caf\u00e9": "caf\u00e9"}.items():
        with pytest.raises(KitError, match=f"names.txt, line 1: .*{reason}"):
            parse_hotwords([line], "names.txt")


def test_references_and_the_order_of_classes_are_part_of_the_logits(capsys):
    "A table makes another program's logits scored; combine looks at the order of classes as decode does."
    generator = np.random.default_rng(3)
    said = ["What did your husband say about chicken?", "I can hardly believe it.", "Who made this cake?"]
    arrays = {str(number): noisy_sentence(sentence, generator) for number, sentence in enumerate(said)}
    order = [*range(1, len(PHONEMES)), 0]
    np.savez("ours.npz", **arrays)
    np.savez("own.npz", **{name: logits[:, order] for name, logits in arrays.items()})
    written("tokens.txt", "\n".join(PHONEMES[index] for index in order))
    written("said.csv", "id,text\n" + "".join(f"{number},{text}\n" for number, text in enumerate(said)))
    plain, known = (LogitsFile("ours.npz", references=table).read(Path()) for table in (None, "said.csv"))
    assert [trial.truth for trial in plain.trials] == [None] * 3 and [trial.truth for trial in known.trials] == said
    assert plain.key != known.key
    assert main("decode --logits ours.npz --data said.csv --out out".split()) == 0
    assert "word error rate" in capsys.readouterr().out
    assert main("combine own.npz said.csv --out new.csv".split()) == 0 and "--tokens" in capsys.readouterr().err
    assert main("combine own.npz said.csv --tokens tokens.txt --out new.csv".split()) == 0
    assert main("combine said.csv out/sentences.csv --tokens tokens.txt --out new.csv".split()) == 2


def test_lists_and_batches_of_logits_are_whole_or_named():
    generator = np.random.default_rng(4)
    arrays = [noisy_sentence(sentence, generator).astype(np.float32) for sentence in SAID]
    tensors = list(map(torch.tensor, arrays))
    torch.save({"epoch": 3, "logits": tensors}, "inside.pt")
    assert [len(trial.logits) for trial in read_trials("inside.pt")] == list(map(len, arrays))
    torch.save({"val": tensors, "test": tensors}, "two.pt")
    with pytest.raises(KitError, match="two.pt: val holds several tensors"):
        read_trials("two.pt")
    shortest = min(map(len, arrays))
    batch = np.stack([array[:shortest] for array in arrays])
    np.savez("two.npz", raw=batch, smoothed=batch)
    assert "raw (3), smoothed (3)" in read_trials("two.npz")[0].notes[0]
    np.savez("scaled.npz", *(array * 1e-6 for array in arrays))
    with pytest.raises(KitError, match="scaled.npz: .*were they scaled"):
        LogitsFile("scaled.npz").read(Path())


@pytest.mark.parametrize("content", ["utt1 hello there\nutt2 you\n", "hello there (utt-1)\nyou (utt-2)\n"])
def test_names_of_utterances_are_no_words_of_a_corpus(content, capsys):
    written("corpus.txt", content)
    assert main("lm build corpus.txt --order 1 --out new.arpa".split()) == 2
    assert "names an utterance" in capsys.readouterr().err
    assert load_sentences("corpus.txt") == ["hello there", "you"], "to be kept out of a model"


@pytest.mark.parametrize("name, content", [
    ("heard.csv", "session,block_num,trial_num,sentence_label\nday,1,0,I see.\n"),
    ("heard.jsonl", '{"session": "day", "block_num": 1, "trial_num": 0, "reference": "I see."}\n')])
def test_a_table_of_recordings_is_read_as_a_hypothesis_and_that_is_said(name, content, capsys):
    assert read_table(written(name, content)).sentences == {("day", 1, 0): "I see."}
    assert "which usually is what was said" in capsys.readouterr().err
    read_table(name, "said")
    assert "usually" not in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028", "\x85"], ids=["LF", "CRLF", "CR", "U+2028", "U+0085"])
def test_lines_of_a_corpus_end_however_they_end(end, capsys):
    "So that each is a sentence, and one that will be scored is found."
    Path("corpus.txt").write_bytes(end.join(["i see you", "it is cold", "no"]).encode())
    Path("scored.txt").write_text("it is cold\n")
    assert main("lm build corpus.txt --order 2 --exclude scored.txt --out new.arpa".split()) == 2
    assert "'it is cold' (corpus.txt, line 2)" in capsys.readouterr().err
    assert main("lm build corpus.txt --order 2 --out new.arpa".split()) == 0
    assert "<s> it" in Path("new.arpa").read_text() and "letters on average" not in capsys.readouterr().err


def test_a_corpus_in_paragraphs_or_given_twice_is_told(capsys):
    written("corpus.txt", "It is cold. She said hello. We can go there now. " * 9 + "\n")
    assert main("lm build corpus.txt --order 1 --out new.arpa".split()) == 0
    assert "a sentence a line" in capsys.readouterr().err
    assert main("lm build corpus.txt ./corpus.txt --order 1 --out new.arpa".split()) == 2
    assert "is given twice" in capsys.readouterr().err
    written("film.srt", "1\n00:01\nno\n2\n00:02\nyes\n3\n00:03\nyes\n")
    assert main("lm build film.srt --order 1 --out new.arpa".split()) == 2 and "film.srt: line" in capsys.readouterr().err
