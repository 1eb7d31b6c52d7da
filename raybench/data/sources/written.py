"""Reading of columns of strings that hold numbers or dates: `1.200,50`, `$5`, `31/12/2017`.

A column is read as numbers or dates if all its cells in every split are numbers or dates, except
strings that stand for a missing value. An ambiguous decimal mark or order of day and month is
decided by `dataset.decimal` and `dataset.dates`, or by the other columns.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybench.data.sources.files import CsvTable
from raybench.data.sources.table import (
    MAX_SHOWN,
    Note,
    Table,
    Tables,
    Unread,
    as_numbers,
    as_texts,
    is_number_type,
)
from raybench.spec.dataset_spec import TABLES, DatasetSpec, DateOrder, DecimalMark

Mask = npt.NDArray[np.bool_]
MISSING_TEXTS = (
    *("-", "--", "---", "\N{EN DASH}", "\N{EM DASH}", ".", "..", "...", "?", "*", "/"),
    *("na", "n/a", "n.a.", "#n/a", "#na", "<na>", "nan", "null", "(null)", "none", "nil", "\\n"),
    *("unknown", "missing", "not available", "inf", "-inf", "infinity", "-infinity"),
    *("#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!"),
)
"""Strings (in lower case) that stand for a missing value in a column of numbers or dates."""
MAX_MISTAKES = (
    0.1  # maximum fraction of other cells in a column that is assumed to hold numbers (or dates)
)
PROBED_ROWS = 1000  # number of first rows that decide if a column may hold numbers or dates
SPACE = "[ '\N{RIGHT SINGLE QUOTATION MARK}\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}]"
UNIT = (
    r"[\p{Sc}%‰]|EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|HKD|SGD|SEK|NOK|DKK|PLN|CZK|HUF|RON|BRL|"
    r"MXN|KRW|ZAR|TRY|RUB|US\$|kr|zł|Fr\."
)
MINUS = r"\x{2212}-"  # must be at the end of a character class, because of the hyphen
NUMBER = (
    rf"^(?P<open>\()?{SPACE}*(?P<sign>[+{MINUS}])?{SPACE}*(?P<before>{UNIT})?{SPACE}*"
    rf"(?P<inner>[+{MINUS}])?(?P<digits>[1-9]\d{{0,2}}(?:{SPACE}\d{{3}})+|[\d.,]*\d)"
    rf"(?P<rest>[.,]\d*)?(?P<exponent>[eE][-+]?\d{{1,3}})?{SPACE}*(?P<after>{UNIT})?"
    rf"(?P<end>[{MINUS}])?(?P<close>\))?$"
)
PLAIN = r"^-?[\d.,]*\d$"
READABLE: dict[DecimalMark, str] = {
    ".": r"^(?:\d+|[1-9]\d{0,2}(?:,\d{2,3})*,\d{3})?(?:\.\d*)?$",
    ",": r"^(?:\d+|[1-9]\d{0,2}(?:\.\d{2,3})*\.\d{3})?(?:,\d*)?$",
}
"""Patterns of numbers, by decimal mark; the other mark separates thousands."""
DATE = (
    r"^(?P<first>\d{1,4})(?P<mark>[-/.])(?P<second>\d{1,2})[-/.](?P<third>\d{1,4})"
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<seconds>\d{2}(?:\.\d+)?))?"
    r"(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?Z?)?$"
)
MONTHS = (
    *("jan(uary?)?", "feb(ruary?)?", "mar(ch)?|m[aä]rz?", "apr(il)?", "ma[iy]", "jun[ei]?"),
    *("jul[iy]?", "aug(ust)?", "sept?(ember)?", "o[ck]t(ober)?", "nov(ember)?", "de[cz](ember)?"),
)  # English and German
NAMED = {
    r"^(\d{1,2})[-/. ]*#(\d+)#[-/., ]*(\d{2,4})\b": r"\3-\2-\1",
    r"^#(\d+)#[-/. ]*(\d{1,2})[-/., ]+(\d{2,4})\b": r"\3-\1-\2",
    r"^((?:[0-5]\d|6[0-8])-)": r"20\1",  # two-digit years as in POSIX: 1969 to 2068
    r"^((?:69|[7-9]\d)-)": r"19\1",
}
"""Replacements that convert dates to year-month-day, after the name of the month has been replaced
by its number between two `#`."""
ORDERS: dict[DateOrder, tuple[str, str, str]] = {
    "year_first": ("first", "second", "third"),
    "day_first": ("third", "second", "first"),
    "month_first": ("third", "first", "second"),
}
"""For each order, the groups of DATE that are year, month and day."""
ORDER_NAMES = {
    "year_first": "year/month/day",
    "day_first": "day/month/year",
    "month_first": "month/day/year",
}


@dataclass(frozen=True, kw_only=True)
class ValueNotation:
    """Notation of the numbers or dates in a column of strings."""

    kind: Literal["number", "date"]
    decimal: DecimalMark = "."
    order: DateOrder = "year_first"
    is_amount: bool = False
    """Whether numbers have a unit or separated thousands, so that they cannot be class names."""

    @property
    def type(self) -> Any:
        """pyarrow type of the values."""
        return pa.float64() if self.kind == "number" else pa.timestamp("us")

    def read(self, values: Any) -> Any:
        """Convert a `pyarrow.Array` of strings to numbers or timestamps, or null if missing.

        Raises:
            ValueError: A string is not in this notation; the message shows the first one.
        """
        encoded = as_texts(values).dictionary_encode()
        texts = encoded.dictionary
        is_missing = _is_missing(texts)
        texts = pc.if_else(pa.array(is_missing), None, texts)
        found, is_read = (
            _numbers(texts, self.decimal)
            if self.kind == "number"
            else _dates(_with_numbers(texts), self.order)
        )
        wrong = np.flatnonzero(~is_read & ~is_missing)
        if len(wrong):
            raise ValueError(f"'{texts[int(wrong[0])]}' is no {self.kind}")
        return pa.array(found, self.type, mask=~is_read).take(encoded.indices)


def _is_missing(texts: Any) -> Mask:
    return _mask(pc.is_in(pc.utf8_lower(texts), value_set=pa.array(MISSING_TEXTS)))


def _mask(booleans: Any) -> Mask:
    return np.asarray(pc.fill_null(booleans, False))


def _matches(texts: Any, pattern: str) -> Mask:
    return _mask(pc.match_substring_regex(texts, pattern))


@dataclass(frozen=True)
class _Cells:
    """Strings split into the parts of a number; each field has one entry per string."""

    body: Any
    """Digits and marks, without spaces; null if the string is not a number."""
    units: Any
    is_negative: Mask
    exponent: Any


def _cells(texts: Any) -> _Cells:
    is_plain = pc.fill_null(pc.match_substring_regex(texts, PLAIN), True)
    if pc.all(is_plain).as_py() is not False:  # a shortcut, many times faster than matching NUMBER
        none = pc.fill_null(pc.utf8_slice_codeunits(texts, 0, 0), "")
        is_negative = _mask(pc.starts_with(texts, "-"))
        return _Cells(pc.utf8_ltrim(texts, "-"), none, is_negative, none)
    found = pc.extract_regex(texts, pattern=NUMBER)
    part = {one.name: pc.struct_field(found, one.name) for one in found.type}
    is_whole = pc.equal(pc.equal(part["open"], ""), pc.equal(part["close"], ""))
    digits = pc.replace_substring_regex(part["digits"], pattern=SPACE, replacement="")
    body = pc.if_else(is_whole, pc.binary_join_element_wise(digits, part["rest"], ""), None)
    signs = pc.binary_join_element_wise(part["sign"], part["inner"], part["end"], part["open"], "")
    is_negative = _mask(pc.match_substring_regex(signs, f"[({MINUS}]"))
    units = pc.binary_join_element_wise(part["before"], part["after"], "")
    return _Cells(body, units, is_negative, part["exponent"])


def _numbers(texts: Any, mark: DecimalMark) -> tuple[npt.NDArray[np.float64], Mask]:
    cells = _cells(texts)
    is_read = _mask(pc.match_substring_regex(cells.body, READABLE[mark]))
    body = pc.replace_substring(cells.body, ",.".replace(mark, ""), "")
    body = pc.binary_join_element_wise(pc.replace_substring(body, mark, "."), cells.exponent, "")
    numbers = pc.if_else(pa.array(is_read), body, None).cast(pa.float64())
    values = numbers.to_numpy(zero_copy_only=False)
    return np.where(cells.is_negative, -values, values), is_read


def _with_numbers(texts: Any) -> Any:
    """Convert dates with a named month to year-month-day; return other strings unchanged."""
    named = texts
    for number, month in enumerate(MONTHS, 1):
        pattern = rf"(?i)\b(?:{month})\b\.?"
        named = pc.replace_substring_regex(named, pattern=pattern, replacement=f"#{number}#")
    is_named = pc.match_substring_regex(named, r"^(\d{1,2}[-/. ]*)?#\d+#")
    for pattern, replacement in NAMED.items():
        named = pc.replace_substring_regex(named, pattern=pattern, replacement=replacement)
    return pc.if_else(is_named, named, texts)


def _dates(texts: Any, order: DateOrder) -> tuple[npt.NDArray[np.datetime64], Mask]:
    found = pc.extract_regex(texts, pattern=DATE)
    part = {one.name: pc.fill_null(pc.struct_field(found, one.name), "") for one in found.type}

    def number(name: str) -> npt.NDArray[np.float64]:
        filled = pc.if_else(pc.equal(part[name], ""), "0", part[name])
        return np.asarray(filled.cast(pa.float64()))

    digits = {name: np.asarray(pc.utf8_length(part[name])) for name in ORDERS[order]}
    values = {name: number(name).astype(np.int64) for name in ORDERS[order]}
    is_iso = digits["first"] == 4
    year, month, day = (
        np.where(is_iso, values[iso], values[own])
        for iso, own in zip(ORDERS["year_first"], ORDERS[order], strict=True)
    )
    lengths = [
        np.where(is_iso, digits[iso], digits[own])
        for iso, own in zip(ORDERS["year_first"], ORDERS[order], strict=True)
    ]
    is_read = np.isin(lengths[0], (2, 4)) & (lengths[1] <= 2) & (lengths[2] <= 2)
    # 1.10.12 may be a version. With points and a two-digit year, all parts need two digits.
    is_short = (lengths[0] == 2) & ((lengths[1] < 2) | (lengths[2] < 2))
    is_read &= ~(is_short & _mask(pc.equal(part["mark"], ".")))
    # Two-digit years as in POSIX: 1969 to 2068.
    year = np.where(lengths[0] == 4, year, year + np.where(year < 69, 2000, 1900))
    is_read &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = (12 * (year - 1970) + np.where(is_read, month, 1) - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (np.where(is_read, day, 1) - 1)
    is_read &= days.astype("datetime64[M]") == months  # rejects February 30
    hour, half = number("hour"), np.asarray(pc.utf8_lower(part["half"]).to_pylist(), object)
    is_read &= (hour < 24) & (number("minute") < 60) & (number("seconds") < 61)
    is_read &= (half == "") | ((hour >= 1) & (hour <= 12))
    hour = np.where(half == "", hour, hour % 12 + 12 * (half == "p"))
    seconds = 3600 * hour + 60 * number("minute") + number("seconds")
    return days.astype("datetime64[us]") + (1e6 * seconds).astype("timedelta64[us]"), is_read


class _DistinctStrings:
    """The distinct strings of one column in all splits, and the possible ways to read them.

    Masks have one boolean per distinct string.
    """

    def __init__(self, parts: Iterable[Any], *, is_typed: bool = False) -> None:
        """Collect the strings of a column from its batches (`pyarrow.Array`).

        `is_typed`: whether the file has column types (unlike CSV), so that its strings are probably
        not numbers.
        """
        self.is_typed = is_typed
        counted = pa.concat_arrays([pc.value_counts(as_texts(part).drop_null()) for part in parts])
        encoded = counted.field("values").dictionary_encode()
        counts = np.bincount(
            encoded.indices, counted.field("counts"), minlength=len(encoded.dictionary)
        ).astype(np.int64)
        is_missing = _is_missing(encoded.dictionary)
        missing = encoded.dictionary.filter(pa.array(is_missing)).to_pylist()
        self.missing = dict(zip(missing, counts[is_missing].tolist(), strict=True))
        """Number of cells for each string that stands for a missing value."""
        self.texts = encoded.dictionary.filter(pa.array(~is_missing))
        self.counts = counts[~is_missing]

        cells = _cells(self.texts)
        self.body, self.units = cells.body, cells.units
        self.by_mark = {mark: _matches(self.body, READABLE[mark]) for mark in READABLE}
        """For each decimal mark, the mask of the strings that are numbers with this mark."""
        self.is_number = self.by_mark["."] | self.by_mark[","]
        is_either = self.by_mark["."] & self.by_mark[","]
        has_mark = {mark: _mask(pc.match_substring(self.body, mark)) for mark in READABLE}
        self.either = {mark: is_either & has_mark[mark] for mark in READABLE}
        """Mask of ambiguous numbers, whose mark may be the decimal mark or separate thousands, such
        as 1,200."""
        self.only = {mark: self.by_mark[mark] & ~is_either for mark in READABLE}
        self.has_thousands = self.is_number & _matches(self.texts, rf"\d{SPACE}\d")
        """Mask of numbers whose thousands are unambiguously separated, by a mark or a space."""
        self.has_thousands |= self.only["."] & has_mark[","]
        self.has_thousands |= self.only[","] & has_mark["."]

        self.dates: dict[DateOrder, tuple[npt.NDArray[np.datetime64], Mask]] = {}
        """For each order of year, month and day: the times, and the mask of valid dates."""
        self.is_date: Mask = np.zeros(len(self.texts), bool)
        self.differ: Mask = np.zeros(len(self.texts), bool)
        """Masks of dates in any order, and of dates that two orders read as different days."""
        if not self.is_number.all():
            numbered = _with_numbers(self.texts)
            self.dates = {order: _dates(numbered, order) for order in ORDERS}
        for (days, is_read), (others, is_other) in itertools.combinations(self.dates.values(), 2):
            self.is_date |= is_read | is_other
            self.differ |= (days != others) & is_read & is_other

    def cells(self, mask: Mask | None = None) -> int:
        """Return the number of cells that hold one of the strings in a mask (by default, all)."""
        return int(self.counts.sum() if mask is None else self.counts[mask].sum())

    def first(self, mask: Mask) -> str | None:
        """Return the first string in a mask; None if the mask is empty."""
        places = np.flatnonzero(mask)
        return self.texts[int(places[0])].as_py() if len(places) else None

    def has(self, pattern: str) -> bool:
        """Return whether the digits and marks of any number match a pattern."""
        return bool(_matches(self.body, pattern).any())

    def of_order_alone(self, order: DateOrder) -> Mask:
        """Return the mask of dates that are valid only in this order."""
        first, second = (one[1] for other, one in self.dates.items() if other != order)
        alone: Mask = self.dates[order][1] & ~(first | second)
        return alone

    @property
    def known_units(self) -> set[str]:
        """Units of the numbers; an empty string stands for numbers without a unit."""
        return set(pc.unique(self.units.filter(pa.array(self.is_number))).to_pylist())

    @property
    def looks_like_thousands(self) -> bool:
        """Whether a mark seems to separate thousands: there are numbers such as 2,100 and 900, but
        none such as 1200."""
        is_either = self.either["."] | self.either[","]
        is_round = (is_either & _matches(self.body, "0$")).any()
        is_short = self.has(r"^\d{1,3}$") and not self.has(r"^\d{4,}$")
        return bool(is_short and (is_round or not self.either["."].any()))

    @property
    def own_mark(self) -> DecimalMark | None:
        """The only decimal mark with which all numbers can be read; None if both or neither fit."""
        can = [mark for mark in READABLE if (self.by_mark[mark] == self.is_number).all()]
        return can[0] if len(can) == 1 and self.is_number.any() else None

    @property
    def own_orders(self) -> list[DateOrder]:
        """The orders in which all dates are valid; only the first if they give the same days."""
        if not self.is_date.any():
            return []
        can = [order for order in ORDERS if (self.dates[order][1] == self.is_date).all()]
        is_dotted = _matches(self.texts, r"^\d+\.\d+\.\d+").all()
        if len(can) > 1 and "day_first" in can and is_dotted:
            return ["day_first"]  # because dates with the month first are not written with points
        return can if self.differ.any() else can[:1]


def parse_text_columns(spec: DatasetSpec, tables: Tables, note: Note) -> Tables:
    """Return tables that read strings as numbers and dates where possible.

    Columns that seem to hold numbers or dates but cannot be read are listed in `Table.unread`.
    `note` is called with sentences on how columns are read.
    """
    if spec.name not in TABLES:  # folders of images or texts hold no numbers
        return tables
    labels = [spec.label] if isinstance(spec.label, str) else spec.label or []
    kept = {spec.text, spec.image, *(spec.categories or []), *tables["train"].class_names}
    kept |= set(labels) if spec.task == "classification" else set()
    columns = tables["train"].schema
    # Categorical columns of pandas hold names.
    kept |= {one.name for one in columns if pa.types.is_dictionary(one.type)}
    names = [name for name in columns.names if name not in kept]
    numbers = _columns_with_possible_thousands(tables, names)
    as_read = _with_texts(tables, numbers)
    texts = {name: one for name in names if (one := _texts_of(as_read, name)) is not None}
    marks = {mark for one in texts.values() if (mark := one.own_mark) is not None}
    if any(_has_points(table, set(names) - set(texts)) for table in tables.values()):
        marks.add(".")
    orders = {one.own_orders[0] for one in texts.values() if len(one.own_orders) == 1}
    csv = [one for one in tables.values() if isinstance(one, CsvTable)]
    known = _Known(spec, marks, orders, is_english=all(one.delimiter == "," for one in csv))
    found = {
        name: _decide(one, known, is_number=name in labels and spec.task == "regression")
        for name, one in texts.items()
    }
    forms = {name: one for name, one in found.items() if isinstance(one, ValueNotation)}
    for name in numbers:
        is_read = not any(one.is_text(name) for one in tables.values() if name in one.schema.names)
        if is_read and name in forms and forms[name].decimal == ".":
            own = texts[name]
            if own.either["."].any() and (own.looks_like_thousands or not known.is_english):
                note(
                    f"column '{name}' is read with decimal points ({_as(own, forms[name])}); if "
                    "points stand between thousands there, set dataset.decimal: ','."
                )
            del forms[name]
    _note_forms(texts, forms, note)
    written = _with_texts(tables, [name for name in numbers if name in forms])
    unread = {
        name: replace(one, place=_place_of(one, name, written))
        for name, one in found.items()
        if isinstance(one, Unread)
    }
    return {split: table.read_as(forms, unread) for split, table in written.items()}


def _place_of(unread: Unread, column: str, tables: Tables) -> str:
    """Return the place of the first cell with the string to correct, or the name of the table."""
    for table in tables.values() if unread.wrong is not None else ():
        if column not in table.schema.names or not table.is_text(column):
            continue
        start = 0
        for batch in table.batches([column]):
            found = pc.index(as_texts(batch.column(0)), unread.wrong).as_py()
            if found >= 0:
                return table.place(start + found)
            start += batch.num_rows
    return tables["train"].source


def _with_texts(tables: Tables, names: Sequence[str]) -> Tables:
    """Return the tables with the columns `names` of CSV files as original strings."""
    return {
        split: table.with_texts([name for name in names if name in table.schema.names])
        if isinstance(table, CsvTable) and names
        else table
        for split, table in tables.items()
    }


def _columns_with_possible_thousands(tables: Tables, names: Sequence[str]) -> list[str]:
    """Return the number columns of CSV files that must be read again as strings.

    Either the point in numbers such as 2.100 may separate thousands, or the column holds strings in
    another split.
    """
    found = []
    for name in names:
        own = [one for one in tables.values() if name in one.schema.names]
        numbers = [one for one in own if not one.is_text(name)]
        if not numbers or not all(isinstance(one, CsvTable) for one in numbers):
            continue
        are_fractions = [pa.types.is_floating(one.kind(name)) for one in own]
        if len(numbers) < len(own) or (
            any(are_fractions) and all(_may_be_thousands(one, name) for one in numbers)
        ):
            found.append(name)
    return found


def _may_be_thousands(table: Table, name: str) -> bool:
    """Return whether points may separate thousands (2.100) in all numbers of a column: all are 0 or
    in [1, 1000), with at most 3 decimals."""
    if not is_number_type(table.kind(name)):
        return False
    for batch in table.batches([name]):  # usually, the first batch decides
        numbers = np.abs(as_numbers(batch.column(0)))
        numbers = numbers[~np.isnan(numbers)]
        thousandths = 1000 * numbers
        is_sound = (numbers < 1000) & ((numbers >= 1) | (numbers == 0))
        if not (is_sound & (np.abs(thousandths - np.round(thousandths)) < 1e-6)).all():
            return False
    return True


def _has_points(table: Table, names: set[str]) -> bool:
    """Return whether any of the columns in a CSV file holds numbers with decimal points."""
    return isinstance(table, CsvTable) and any(
        one.name in names and pa.types.is_floating(one.type) for one in table.schema
    )


def _texts_of(tables: Tables, name: str) -> _DistinctStrings | None:
    """Return the strings of a column; None unless it may hold numbers or dates in every split."""
    own = [one for one in tables.values() if name in one.schema.names and one.is_text(name)]
    for table in own:
        first = _DistinctStrings([table.head(name).slice(0, PROBED_ROWS)])
        most = max(first.cells(first.is_number), first.cells(first.is_date))
        if most < (1 - MAX_MISTAKES) * first.cells():
            return None
    if not own:
        return None
    is_typed = not all(isinstance(one, CsvTable) for one in own)
    parts = (batch.column(0) for table in own for batch in table.batches([name]))
    return _DistinctStrings(parts, is_typed=is_typed)


@dataclass(frozen=True)
class _Known:
    """Hints on the notation of ambiguous columns, from the spec and from the other columns."""

    spec: DatasetSpec
    marks: set[DecimalMark]
    """Decimal marks of the unambiguous columns."""
    orders: set[DateOrder]
    """Orders of year, month and day in the unambiguous columns."""
    is_english: bool
    """Whether the delimiter of all CSV files is a comma."""


def _decide(
    texts: _DistinctStrings, known: _Known, *, is_number: bool
) -> ValueNotation | Unread | None:
    """Return the notation of a column, the reason why it cannot be read, or None if it holds names.

    `is_number`: whether the column is the label of a regression, so that it must hold numbers.
    """
    total, numbers, dates = texts.cells(), texts.cells(texts.is_number), texts.cells(texts.is_date)
    if not total:
        return None
    if numbers == total:
        is_plain = _matches(texts.texts, r"^\d+$").all() and (texts.is_typed or not texts.missing)
        is_name = is_plain or texts.has(r"^0\d")  # a leading 0 indicates a code
        return None if is_name and not is_number else _number_form(texts, known)
    if dates == total:
        return _date_form(texts, known)
    for kind, mask in (("number", texts.is_number), ("date", texts.is_date)):
        if texts.cells(mask) > (1 - MAX_MISTAKES) * total:
            wrong = texts.first(~mask)
            reason = (
                f"holds {kind}s, and '{wrong}' there ({texts.cells(~mask):,} such rows); leave "
                "such cells empty where nothing is known, or list the column in "
                "dataset.categories if its values are names"
            )
            return Unread(reason, wrong)
    return None


def _number_form(texts: _DistinctStrings, known: _Known) -> ValueNotation | Unread:
    units = texts.known_units - {""}
    if len(units) > 1 or ("%" in units and "" in texts.known_units):
        shown = " and ".join(f"'{unit}'" if unit else "none" for unit in sorted(texts.known_units))
        return Unread(f"holds amounts of several units ({shown}); write them in one")
    marks = [mark for mark in READABLE if texts.either[mark].any()]
    mark, is_amount = texts.own_mark, bool(units) or bool(texts.has_thousands.any())
    can_be_both = all((mask == texts.is_number).all() for mask in texts.by_mark.values())
    if mark is None and (not can_be_both or len(marks) == 2):
        shown_by = texts.either if can_be_both else texts.only
        point, comma = texts.first(shown_by["."]), texts.first(shown_by[","])
        reason = (
            f"holds numbers with decimal points and with decimal commas ('{point}' and '{comma}'); "
            "write them alike, in all files"
        )
        return Unread(reason, comma)
    if mark is None and marks:
        mark = known.spec.decimal or (next(iter(known.marks)) if len(known.marks) == 1 else None)
        # In an English CSV file, the point in 12.500 is a decimal point. In 1.000 EUR, or in a file
        # with column types, the point may separate thousands.
        is_plain_english = known.is_english and not texts.is_typed and not units
        if (
            mark is None
            and texts.looks_like_thousands
            and not (marks == ["."] and is_plain_english)
        ):
            mark = "," if marks == ["."] else "."
        if mark is None and (marks == ["."] or known.is_english):
            mark = "."
        if mark is None:
            return Unread(
                f"holds numbers such as '{texts.first(texts.either[marks[0]])}', whose comma may "
                "be a decimal one or stand between thousands; set dataset.decimal: ',' or '.'"
            )
        is_amount |= mark != marks[0]
    return ValueNotation(kind="number", decimal=mark or ".", is_amount=is_amount)


def _date_form(texts: _DistinctStrings, known: _Known) -> ValueNotation | Unread:
    can = texts.own_orders
    if not can:
        shown = [text for one in ORDERS if (text := texts.first(texts.of_order_alone(one)))]
        shown = shown or [str(texts.first(~texts.is_number))]
        examples = "', '".join(shown)
        return Unread(f"holds dates in several orders ('{examples}'); write them alike", shown[0])
    known_orders = [one for one in can if one == known.spec.dates] or [
        one for one in can if known.orders == {one}
    ]
    if len(can) > 1 and not known_orders:
        ways = " or ".join(can)
        return Unread(
            f"holds dates whose day and month are ambiguous ('{texts.first(texts.differ)}');"
            f" set dataset.dates: {ways}, or write them as 2017-12-31"
        )
    return ValueNotation(kind="date", order=(known_orders or can)[0])


def _as(texts: _DistinctStrings, form: ValueNotation) -> str:
    """Return an example for a message: a string of the column and the value as which it is read."""
    if form.kind == "date":
        masks = [texts.of_order_alone(form.order), texts.dates[form.order][1]]
    else:
        has_unit = texts.is_number & ~_mask(pc.equal(texts.units, ""))
        masks = [has_unit, texts.has_thousands, texts.either[","], texts.either["."]]
    text = next(text for mask in masks if (text := texts.first(mask)) is not None)
    value = form.read(pa.array([text]))[0].as_py()
    return f"'{text}' is {value:.10g}" if form.kind == "number" else f"'{text}' is {value:%Y-%m-%d}"


def _note_forms(
    texts: Mapping[str, _DistinctStrings], forms: Mapping[str, ValueNotation], note: Note
) -> None:
    """Call `note` with the columns of each notation and with the strings taken as missing."""
    lines: dict[str, list[str]] = {}
    for name, form in forms.items():
        own, begin = texts[name], "numbers are read as they are written"
        if form.kind == "date":
            begin = f"dates are read as {ORDER_NAMES[form.order]}"
        if form.kind == "date" or form.is_amount or any(mask.any() for mask in own.either.values()):
            lines.setdefault(begin, []).append(f"{name} ({_as(own, form)})")
        if own.missing:
            shown = ", ".join(f"'{text}' in {number:,}" for text, number in own.missing.items())
            lines.setdefault("cells taken as missing", []).append(f"{name} ({shown})")
    for begin, columns in lines.items():
        more = ", ..." if len(columns) > MAX_SHOWN else ""
        note(f"{begin}: {', '.join(columns[:MAX_SHOWN])}{more}.")
