"""Every number that a command line takes has bounds: a walk over the options of all verbs, recipes and models."""
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from b2t_kit.cli import all_verbs, main
from b2t_kit.verb import HasSettings
from b2t_kit.core.errors import KitError
from b2t_kit.core.settings import kinds_of, leaves, override
from b2t_kit.models.model import model_class, model_names

VERBS = list(all_verbs().values())
SEEDS = {"seed", "seeds", "adapt_seed", "global_seed"}  # which may be any number that is not negative
ENDLESS = {"threshold", "token_threshold"}  # of the search: infinity drops nothing


def number_kind(annotation: Any) -> type | None:
    """Whether a value is a number, or several: int or float; None for all else."""
    kinds = [kind for one in kinds_of(annotation) for kind in (one, *typing.get_args(one))]
    return next((kind for kind in (int, float) if kind in kinds), None)


def open_ends(name: str, annotation: Any, make: Callable[[str, Any], object]) -> list[str]:
    """The ends at which a number has no bound; `make` builds what takes it, and raises KitError."""
    kind, last = number_kind(annotation), name.rpartition(".")[2]
    several = any(typing.get_origin(one) is tuple for one in kinds_of(annotation))
    found = []
    for end, value in (("above", 2**62), ("below", -(2**62))):
        free = end == "above" and last in SEEDS | ENDLESS
        number = value if kind is int else value * 1e280
        try:
            make(name, (number, number) if several else number)
        except KitError as error:
            assert last.replace("adapt_", "") in str(error), (name, str(error))
        else:
            found += [] if free else [f"{name} {end}"]
    return found


def open_settings(config: Any) -> list[str]:
    """The ends at which numbers of a configuration have no bound."""
    return [end for name, (kind, _) in leaves(config).items() if number_kind(kind) is not None
            for end in open_ends(name, kind, lambda name, value: override(config, {name: value}))]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_every_number_of_a_verb_has_bounds(verb: type) -> None:
    """Also those of the recipe that the verb begins with."""
    needed = {one.name: "x" for one in fields(verb) if one.default is MISSING and one.default_factory is MISSING}
    hints, found = typing.get_type_hints(verb), list[str]()
    for name in (one.name for one in fields(verb)):
        if number_kind(hints[name]) is not None:
            found += open_ends(name, hints[name], lambda name, value: verb(**needed | {name: value}))
    configs = [one.default for one in fields(verb) if is_dataclass(one.default)]
    configs += [verb.initial(())] if issubclass(verb, HasSettings) else []
    assert found + [end for config in configs for end in open_settings(config)] == []


MODELS = [*(model_class(name)() for name in model_names()),
          *([import_module("b2t_kit.tasks.eit").EITConfig()] if find_spec("b2t_kit.tasks") else [])]  # of the wing, where it is


@pytest.mark.parametrize("config", MODELS, ids=lambda config: type(config).__name__)
def test_every_number_of_a_model_has_bounds(config: Any) -> None:
    """Models that no recipe begins with, and what a run's record may hold beyond its options."""
    assert open_settings(config) == []


@pytest.mark.parametrize("words", [
    "train --out RUN --cut 1000000000", "train --out RUN --max-bins 1e15",
    "lm build text.txt --out m.b2tlm --order 1e9", "plan tiny --chips 1e15", "live --run RUN --port 65536",
    "simulate --out DATA --trials 1e9", "eit simulate --out TANKS --refinements 40",
])
def test_the_command_line_names_the_number(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, status 2, and nothing begun."""
    if (wing := {"live": "live", "eit": "tasks"}.get(words.split()[0])):
        pytest.importorskip(f"b2t_kit.{wing}")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {words.split()[-2]}: must be in [") and said.count("\n") == 1
