"""Relations: what holds between kinds of things, how pages say it, how one asks, what one must say.

Each is a function from a subject to one value, but for an *office*, whose holder hangs on the year.
A task is taken to ask for a relation if it holds all words of one of the relation's cues, or of its
`back_cues` where the value is known and the subjects are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

YEAR = "year"
KINDS = ("person", "place", "firm", "work")
PLURALS = {"person": "people", "place": "places", "firm": "firms", "work": "works"}

Cues = tuple[frozenset[str], ...]


def _cues(text: str) -> Cues:
    """Alternatives, separated by bars, of words that must all be there."""
    return tuple(frozenset(words.split()) for words in text.split("|") if words)


@dataclass(frozen=True, slots=True)
class Relation:
    """What holds between a subject of one kind and a value of another, or a year."""

    name: str
    of: str  # kind of the subject
    to: str  # kind of the value, or YEAR
    nouns: tuple[str, ...]  # the value, as a phrase about {s}
    says: tuple[str, ...]  # sentences on the subject's page, about {s} and {v}
    cues: Cues
    group: str = ""  # the subjects, as a clause about {v}; "" = nobody asks for them
    lists: tuple[str, ...] = ()  # sentences on the value's page, about {v} and {list}
    back_cues: Cues = ()
    single: bool = False  # no two subjects have the same value
    office: bool = False  # the sentences also have {start} and {end}


RELATIONS = (
    Relation(
        "birthplace",
        "person",
        "place",
        ("birthplace of {s}", "place where {s} was born", "place of birth of {s}"),
        (
            "{s} was born in {v}.",
            "The birthplace of {s} is {v}.",
            "{s} was born and grew up in {v}.",
        ),
        _cues("birthplace|born where|born place|born town|birth place|birth town|born city"),
        "born in {v}",
        ("{v} is the birthplace of {list}.", "In {v} these were born: {list}."),
        _cues("born|natives|birthplace"),
    ),
    Relation(
        "birth year",
        "person",
        YEAR,
        ("birth year of {s}", "year of birth of {s}", "year in which {s} was born"),
        (
            "{s} was born in the year {v}.",
            "The birth year of {s} is {v}.",
            "{s}, born in {v}, is known to many.",
        ),
        _cues("birth year|born year|born when|birth date"),
    ),
    Relation(
        "employer",
        "person",
        "firm",
        ("employer of {s}", "firm that employs {s}"),
        ("{s} is employed by {v}.", "{s} works for {v}.", "The employer of {s} is {v}."),
        _cues("employer|employs|employed|works for|work for|work where|works where"),
        "employed by {v}",
        ("{v} employs {list}.", "These work for {v}: {list}."),
        _cues("employs|employed|employees|staff|employ|work for|works for"),
    ),
    Relation(
        "mentor",
        "person",
        "person",
        ("mentor of {s}", "teacher of {s}"),
        ("The mentor of {s} is {v}.", "The teacher of {s} was {v}.", "{s} had {v} as a mentor."),
        _cues("mentor|teacher|who taught"),
        "taught by {v}",
        ("{v} taught {list}.", "The pupils of {v} are {list}."),
        _cues("taught by|pupils|pupil|students|student"),
    ),
    Relation(
        "mayor",
        "place",
        "person",
        ("person who in {year} was mayor of {s}",),
        (
            "{v} was mayor of {s} from {start} to {end}.",
            "From {start} to {end} the mayor of {s} was {v}.",
        ),
        _cues("mayor|mayors"),
        office=True,
    ),
    Relation(
        "charter year",
        "place",
        YEAR,
        ("charter year of {s}", "year of the charter of {s}"),
        ("{s} received its charter in {v}.", "The charter year of {s} is {v}."),
        _cues("charter"),
    ),
    Relation(
        "seat",
        "firm",
        "place",
        ("seat of {s}", "place where {s} has its seat"),
        (
            "{s} has its seat in {v}.",
            "The seat of {s} is {v}.",
            "{s} is run from its headquarters in {v}.",
        ),
        _cues("seat|headquarters|seated|located|based"),
        "seated in {v}",
        ("{v} is the seat of {list}.", "These have their headquarters in {v}: {list}."),
        _cues("seated|seat|headquarters|firms in|based|located"),
    ),
    Relation(
        "founder",
        "firm",
        "person",
        ("founder of {s}", "person who founded {s}"),
        ("{s} was founded by {v}.", "The founder of {s} is {v}.", "{v} founded {s}."),
        _cues("founder|founded by|founded who|founded person"),
        lists=("{v} founded {list}.",),
        back_cues=_cues("founded|founder"),
        single=True,
    ),
    Relation(
        "founding year",
        "firm",
        YEAR,
        ("founding year of {s}", "year in which {s} was founded"),
        (
            "{s} was founded in {v}.",
            "The founding year of {s} is {v}.",
            "{s}, founded in {v}, is still there.",
        ),
        _cues("founding year|founded year|founded when|founding date|foundation year"),
    ),
    Relation(
        "author",
        "work",
        "person",
        ("author of {s}", "person who wrote {s}"),
        ("{s} was written by {v}.", "The author of {s} is {v}.", "{v} wrote {s}."),
        _cues("author|wrote|written by|writer"),
        "written by {v}",
        ("{v} wrote {list}.", "{v} is the author of {list}."),
        _cues("written by|wrote|works of|works by|write|author"),
    ),
    Relation(
        "publisher",
        "work",
        "firm",
        ("publisher of {s}", "firm that published {s}"),
        ("{s} was published by {v}.", "The publisher of {s} is {v}.", "{v} published {s}."),
        _cues("publisher|published by|published firm|published who"),
        "published by {v}",
        ("{v} published {list}.", "{v} is the publisher of {list}."),
        _cues("published by|published|publish|publisher"),
    ),
    Relation(
        "publication year",
        "work",
        YEAR,
        ("publication year of {s}", "year in which {s} was published"),
        ("{s} was published in {v}.", "The publication year of {s} is {v}."),
        _cues("publication year|published year|published when|publication date"),
    ),
    Relation(
        "setting",
        "work",
        "place",
        ("setting of {s}", "place where {s} is set"),
        ("{s} is set in {v}.", "The setting of {s} is {v}."),
        _cues("setting|set where|set place|set in"),
        "set in {v}",
        ("{v} is the setting of {list}.", "These works are set in {v}: {list}."),
        _cues("set in|setting|set"),
    ),
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
YEAR_OF = {"person": "birth year", "firm": "founding year", "work": "publication year"}

# Sentences about which nothing is asked: the subject's kind -> (sentence, kind of {v}).
DISTRACTORS = {
    "person": (
        ("{s} studied in {v}.", "place"),
        ("{s} spent many summers in {v}.", "place"),
        ("{s} once advised {v}.", "firm"),
        ("{s} turned down an offer of {v}.", "firm"),
        ("{s} is often mistaken for {v}.", "person"),
        ("{s} reviewed {v} at length.", "work"),
        ("{s} won a prize in {v}.", YEAR),
    ),
    "place": (
        ("{s} is twinned with {v}.", "place"),
        ("{v} gave a speech in {s}.", "person"),
        ("{v} opened a shop in {s}.", "firm"),
        ("A bridge in {s} was finished in {v}.", YEAR),
        ("A street in {s} is named after {v}.", "person"),
    ),
    "firm": (
        ("{s} has a branch in {v}.", "place"),
        ("{s} lost a lawsuit against {v}.", "firm"),
        ("{v} once invested in {s}.", "person"),
        ("{s} moved its archive in {v}.", YEAR),
        ("{s} sponsored a reading of {v}.", "work"),
    ),
    "work": (
        ("{s} was translated by {v}.", "person"),
        ("{s} is often compared with {v}.", "work"),
        ("{v} disliked {s}.", "person"),
        ("{s} was reprinted in {v}.", YEAR),
        ("A copy of {s} is shown in {v}.", "place"),
    ),
}
