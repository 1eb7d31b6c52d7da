"""Numbers and dates in columns of texts, as people write them: `1.200,50`, `$5`, `31/12/2017`.

A column is read as such where all its cells are, in every split, but for signs of a missing value.
Where a column alone does not tell which mark is the decimal one, or the day from the month, the
other columns do, then `dataset.decimal` and `dataset.dates`.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybench.data.sources.files import CsvTable
from raybench.data.sources.table import (
    MAX_SHOWN,
    MemoryTable,
    Say,
    Table,
    Tables,
    Unread,
    as_numbers,
    as_texts,
    is_number_type,
    is_text,
    is_text_type,
)
from raybench.spec.dataset_spec import TABLES, DatasetSpec, DateOrder, DecimalMark

Mask = npt.NDArray[np.bool_]
MISSING = (
    *("-", "--", "---", "\N{EN DASH}", "\N{EM DASH}", ".", "..", "...", "?", "*", "/"),
    *("na", "n/a", "n.a.", "#n/a", "#na", "<na>", "nan", "null", "(null)", "none", "nil", "\\n"),
    *("unknown", "missing", "not available", "inf", "-inf", "infinity", "-infinity"),
    *("#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!"),
)
"""Texts of cells without a value, in lower case; in columns of numbers or dates alone."""
MISTAKES = 0.1  # share of cells below which those that are no numbers (dates) are mistakes
PROBED = 1000  # first rows by which a column is no candidate
SPACE = "[ '\N{RIGHT SINGLE QUOTATION MARK}\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}]"
UNIT = (
    r"[\p{Sc}%‰]|EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|HKD|SGD|SEK|NOK|DKK|PLN|CZK|HUF|RON|BRL|"
    r"MXN|KRW|ZAR|TRY|RUB|US\$|kr|zł|Fr\."
)
MINUS = r"\x{2212}-"  # at the end of a set of characters
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
"""Numbers that can be read by their decimal mark; the other mark stands between thousands."""
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
    r"^([0-6]\d-)": r"20\1",  # as POSIX has years of two digits
    r"^([7-9]\d-)": r"19\1",
}
"""Dates with the month as `#1#`, and their year, month and day as numbers."""
ORDERS: dict[DateOrder, tuple[str, str, str]] = {
    "year_first": ("first", "second", "third"),
    "day_first": ("third", "second", "first"),
    "month_first": ("third", "first", "second"),
}
"""Positions of year, month and day in a date."""
SHOWN = {
    "year_first": "year/month/day",
    "day_first": "day/month/year",
    "month_first": "month/day/year",
}


@dataclass(frozen=True, kw_only=True)
class NumberForm:
    """Form in which the texts of a column are written."""

    kind: Literal["number", "date"]
    decimal: DecimalMark = "."
    order: DateOrder = "year_first"
    is_amount: bool = False
    """Whether numbers have a unit, or a mark between thousands: these are no names of classes."""

    @property
    def type(self) -> Any:
        """Type of pyarrow that the texts become."""
        return pa.float64() if self.kind == "number" else pa.timestamp("us")

    def read(self, values: Any) -> Any:
        """Read a `pyarrow.Array` of texts; ValueError with the first text of another form."""
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
    return _mask(pc.is_in(pc.utf8_lower(texts), value_set=pa.array(MISSING)))


def _mask(booleans: Any) -> Mask:
    return np.asarray(pc.fill_null(booleans, False))


@dataclass(frozen=True)
class _Cells:
    """Texts taken apart as numbers."""

    body: Any
    """Digits and marks, without spaces between thousands; null where the text is no number."""
    units: Any
    is_negative: Mask
    exponent: Any


def _cells(texts: Any) -> _Cells:
    is_plain = pc.fill_null(pc.match_substring_regex(texts, PLAIN), True)
    if pc.all(is_plain).as_py() is not False:  # many times faster than taken apart
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
    """Return dates that name their month in ISO form, others as they are."""
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
    is_iso = digits["first"] == 4  # whatever the others are
    year, month, day = (
        np.where(is_iso, values[iso], values[own])
        for iso, own in zip(ORDERS["year_first"], ORDERS[order], strict=True)
    )
    lengths = [
        np.where(is_iso, digits[iso], digits[own])
        for iso, own in zip(ORDERS["year_first"], ORDERS[order], strict=True)
    ]
    is_read = np.isin(lengths[0], (2, 4)) & (lengths[1] <= 2) & (lengths[2] <= 2)
    # 1.10.12 is a version as likely as a day: with points a year of two digits has such others.
    is_short = (lengths[0] == 2) & ((lengths[1] < 2) | (lengths[2] < 2))
    is_read &= ~(is_short & _mask(pc.equal(part["mark"], ".")))
    # As POSIX has years of two digits.
    year = np.where(lengths[0] == 4, year, year + np.where(year < 69, 2000, 1900))
    is_read &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = (12 * (year - 1970) + np.where(is_read, month, 1) - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (np.where(is_read, day, 1) - 1)
    is_read &= days.astype("datetime64[M]") == months  # no 30 February
    hour, half = number("hour"), np.asarray(pc.utf8_lower(part["half"]).to_pylist(), object)
    is_read &= (hour < 24) & (number("minute") < 60) & (number("seconds") < 61)
    is_read &= (half == "") | ((hour >= 1) & (hour <= 12))
    hour = np.where(half == "", hour, hour % 12 + 12 * (half == "p"))
    seconds = 3600 * hour + 60 * number("minute") + number("seconds")
    return days.astype("datetime64[us]") + (1e6 * seconds).astype("timedelta64[us]"), is_read


@dataclass
class _Facts:
    """Contents of a column, in all splits."""

    known: int = 0
    """Cells with a value."""
    missing: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    dates: int = 0
    readable: Counter[DecimalMark] = field(default_factory=Counter)
    """Cells that are numbers by a decimal mark."""
    orders: Counter[DateOrder] = field(default_factory=Counter)
    units: set[str] = field(default_factory=set)
    marks: Counter[str] = field(default_factory=Counter)
    """Cells with a mark that may be the decimal one or stand between thousands: 1,200."""
    is_parted: bool = False
    """Whether some number surely has a mark or a space between thousands."""
    plain: set[str] = field(default_factory=set)
    """Kinds of numbers without a mark: `short` up to 999, `long` above."""
    is_round: bool = False
    """Whether one of `marks` ends in 0: fractions are written without."""
    is_code: bool = False
    """Whether a number begins with 0, as codes do."""
    is_plain: bool = True
    """Whether all are digits and nothing else."""
    is_typed: bool = False
    """Whether a table with types, where numbers are no texts, holds it as texts."""
    is_dotted: bool = True
    """Whether all dates have points between their parts."""
    differ: bool = False
    """Whether two orders read two dates."""
    shown: dict[str, str] = field(default_factory=dict)
    """The first text of a kind, for sentences."""

    def show(self, kind: str, texts: Any, mask: Mask) -> bool:
        """Note the first of `texts` that are of a kind; return whether there is one."""
        places = np.flatnonzero(mask)
        if len(places):
            self.shown.setdefault(kind, texts[int(places[0])].as_py())
        return bool(len(places))

    def add(self, values: Any) -> None:
        """Look at a part of the column, a `pyarrow.Array` of texts."""
        counted = pc.value_counts(as_texts(values).drop_null())
        texts, counts = counted.field("values"), np.asarray(counted.field("counts"))
        is_missing = _is_missing(texts)
        for place in np.flatnonzero(is_missing):
            self.missing[texts[int(place)].as_py()] += int(counts[place])
        is_known = ~is_missing
        texts, counts = texts.filter(pa.array(is_known)), counts[is_known]
        self.known += int(counts.sum())
        is_number, is_date = self._add_numbers(texts, counts), np.zeros(len(texts), bool)
        if not is_number.all():
            is_date = self._add_dates(texts, counts)
        self.show("no number", texts, ~is_number)
        self.show("no date", texts, ~is_date)

    def _add_numbers(self, texts: Any, counts: npt.NDArray[np.int64]) -> Mask:
        cells = _cells(texts)
        can = {
            mark: _mask(pc.match_substring_regex(cells.body, pattern))
            for mark, pattern in READABLE.items()
        }
        is_number = can["."] | can[","]
        is_both = can["."] & can[","]
        for mark, mask in can.items():
            self.readable[mark] += int(counts[mask].sum())
            has_mark = _mask(pc.match_substring(cells.body, mark))
            self.show(f"decimal {mark}", texts, mask & ~is_both)
            self.marks[mark] += int(counts[has_mark & is_both].sum())
            self.show(f"either {mark}", texts, is_both & has_mark)
            other = _mask(pc.match_substring(cells.body, ",.".replace(mark, "")))
            self.is_parted |= self.show("parted", texts, mask & ~is_both & other)
        self.numbers += int(counts[is_number].sum())
        self.units |= set(pc.unique(cells.units.filter(pa.array(is_number))).to_pylist())
        self.show("unit", texts, is_number & ~_mask(pc.equal(cells.units, "")))
        self.is_parted |= self.show(
            "parted", texts, is_number & _mask(pc.match_substring_regex(texts, rf"\d{SPACE}\d"))
        )
        digits = _mask(pc.match_substring_regex(cells.body, r"^\d+$"))
        is_long = np.asarray(pc.fill_null(pc.utf8_length(cells.body), 0)) > 3
        self.plain |= {"long"} if (digits & is_long).any() else set()
        self.plain |= {"short"} if self.show("short", texts, digits & ~is_long) else set()
        self.is_round |= bool((is_both & ~digits & _mask(pc.ends_with(cells.body, "0"))).any())
        self.is_code |= bool(_mask(pc.match_substring_regex(cells.body, r"^0\d")).any())
        self.is_plain &= bool(_mask(pc.match_substring_regex(texts, r"^\d+$")).all())
        return is_number

    def _add_dates(self, texts: Any, counts: npt.NDArray[np.int64]) -> Mask:
        numbers = _with_numbers(texts)
        found = {order: _dates(numbers, order) for order in ORDERS}
        is_date = np.zeros(len(texts), bool)
        for order, (_, is_read) in found.items():
            self.orders[order] += int(counts[is_read].sum())
            self.show(order, texts, is_read)
            others = [one[1] for other, one in found.items() if other != order]
            self.show(f"only {order}", texts, is_read & ~np.any(others, axis=0))
            is_date |= is_read
        self.dates += int(counts[is_date].sum())
        self.is_dotted &= bool(_mask(pc.match_substring_regex(texts, r"^\d+\.\d+\.\d+")).all())
        for one, other in itertools.combinations(found.values(), 2):
            differs = (one[0] != other[0]) & one[1] & other[1]
            self.differ |= self.show("differs", texts, differs)
        return is_date

    @property
    def looks_parted(self) -> bool:
        """Whether a mark seems to stand between thousands: 2,100 beside 900, and no 1200."""
        return self.plain == {"short"} and (self.is_round or not self.marks["."])


class WrittenTable(Table):
    """A table whose columns of texts are read as the numbers and dates that they hold."""

    def __init__(
        self, table: Table, forms: Mapping[str, NumberForm], unread: Mapping[str, Unread]
    ) -> None:
        if isinstance(table, MemoryTable):  # once, in place of in every pass over it
            written = [
                one.name for one in table.schema if one.name in forms and is_text_type(one.type)
            ]
            table = table.replaced({name: _read_all(table, name, forms[name]) for name in written})
        self._table, self.forms, self.unread = table, forms, unread
        self.source, self.folder, self.num_rows = table.source, table.folder, table.num_rows
        self.class_names = table.class_names
        self.schema = pa.schema(
            [
                (one.name, forms[one.name].type if self._is_written(one) else one.type)
                for one in table.schema
            ]
        )

    def _is_written(self, column: Any) -> bool:
        return column.name in self.forms and is_text_type(column.type)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        for batch in self._table.batches(columns):
            arrays = [
                self.forms[one.name].read(values) if self._is_written(one) else values
                for one, values in zip(batch.schema, batch.columns, strict=True)
            ]
            yield pa.record_batch(arrays, names=list(columns))

    def place(self, row: int) -> str:
        """See `Table`."""
        return self._table.place(row)


def _read_all(table: Table, name: str, form: NumberForm) -> Any:
    parts = [form.read(batch.column(0)) for batch in table.batches([name])]
    return pa.chunked_array(parts, form.type)


def read_written(spec: DatasetSpec, tables: Tables, say: Say) -> Tables:
    """Return the tables with numbers and dates in place of texts that are written so.

    `say` hears how they are read. What cannot be told is in `Table.unread`, with the reason.
    """
    if spec.name not in TABLES:  # classes called as their folders
        return tables
    labels = [spec.label] if isinstance(spec.label, str) else spec.label or []
    kept = {spec.text, spec.image, *(spec.categories or []), *tables["train"].class_names}
    kept |= set(labels) if spec.task == "classification" else set()
    columns = tables["train"].schema
    # Pandas' categories are names by what their owner says.
    kept |= {one.name for one in columns if pa.types.is_dictionary(one.type)}
    names = [name for name in columns.names if name not in kept]
    numbers = _maybe_parted(tables, names)
    facts = _facts_of(_with_texts(tables, numbers), names)
    marks = {mark for one in facts.values() if (mark := _own_mark(one)) is not None}
    if any(_has_points(table, set(names) - set(facts)) for table in tables.values()):
        marks.add(".")
    orders = {order for one in facts.values() for order in _orders(one) if len(_orders(one)) == 1}
    csv = [one for one in tables.values() if isinstance(one, CsvTable)]
    known = _Known(spec, marks, orders, is_english=all(one.delimiter == "," for one in csv))
    found = {
        name: _decide(one, known, is_number=name in labels and spec.task == "regression")
        for name, one in facts.items()
    }
    forms = {name: one for name, one in found.items() if isinstance(one, NumberForm)}
    for name in numbers:
        is_read = not any(is_text(one, name) for one in tables.values() if name in one.schema.names)
        if is_read and name in forms and forms[name].decimal == ".":
            if facts[name].marks["."] and (facts[name].looks_parted or not known.is_english):
                say(
                    f"column '{name}' is read with decimal points ({_as(facts[name], forms[name])})"
                    "; if points stand between thousands there, set dataset.decimal: ','."
                )
            del forms[name]
    _tell(facts, forms, say)
    written = _with_texts(tables, [name for name in numbers if name in forms])
    unread = {
        name: replace(one, place=_place_of(one, name, written))
        for name, one in found.items()
        if isinstance(one, Unread)
    }
    return {split: WrittenTable(table, forms, unread) for split, table in written.items()}


def _place_of(unread: Unread, column: str, tables: Tables) -> str:
    """Return where the text to correct is first found."""
    for table in tables.values() if unread.wrong is not None else ():
        if column not in table.schema.names or not is_text(table, column):
            continue
        start = 0
        for batch in table.batches([column]):
            found = pc.index(as_texts(batch.column(0)), unread.wrong).as_py()
            if found >= 0:
                return table.place(start + found)
            start += batch.num_rows
    return tables["train"].source


def _with_texts(tables: Tables, names: Sequence[str]) -> Tables:
    """Return the tables with columns of CSV files as their texts."""
    return {
        split: table.with_texts([name for name in names if name in table.schema.names])
        if isinstance(table, CsvTable) and names
        else table
        for split, table in tables.items()
    }


def _maybe_parted(tables: Tables, names: Sequence[str]) -> list[str]:
    """Return the columns that CSV files hold as numbers, and that have to be read as texts.

    A point in 2.100 may stand between thousands; and another split may hold other texts.
    """
    found = []
    for name in names:
        own = [one for one in tables.values() if name in one.schema.names]
        numbers = [one for one in own if not is_text(one, name)]
        if not numbers or not all(isinstance(one, CsvTable) for one in numbers):
            continue
        are_fractions = [pa.types.is_floating(one.schema.field(name).type) for one in own]
        if len(numbers) < len(own) or (
            any(are_fractions) and all(_is_parted(one, name) for one in numbers)
        ):
            found.append(name)
    return found


def _is_parted(table: Table, name: str) -> bool:
    """Whether numbers may be 900 and 2.100: no fractions of one, nor with other digits."""
    if not is_number_type(table.schema.field(name).type):
        return False
    for batch in table.batches([name]):  # mostly the first one says no
        numbers = np.abs(as_numbers(batch.column(0)))
        numbers = numbers[~np.isnan(numbers)]
        thousandths = 1000 * numbers
        is_sound = (numbers < 1000) & ((numbers >= 1) | (numbers == 0))
        if not (is_sound & (np.abs(thousandths - np.round(thousandths)) < 1e-6)).all():
            return False
    return True


def _has_points(table: Table, names: set[str]) -> bool:
    """Whether some of these columns of a CSV file hold numbers with decimal points."""
    return isinstance(table, CsvTable) and any(
        one.name in names and pa.types.is_floating(one.type) for one in table.schema
    )


def _facts_of(tables: Tables, names: Sequence[str]) -> dict[str, _Facts]:
    """Return what is in the columns of texts that may be numbers or dates."""
    found: dict[str, _Facts] = {}
    for name in names:
        own = [one for one in tables.values() if name in one.schema.names and is_text(one, name)]
        for table in own:
            first = _Facts()
            first.add(next(iter(table.batches([name]))).column(0).slice(0, PROBED))
            if max(first.numbers, first.dates) < (1 - MISTAKES) * first.known:
                break
        else:
            if own:
                found[name] = _Facts(is_typed=not all(isinstance(one, CsvTable) for one in own))
    for table in tables.values():
        own_names = [name for name in found if name in table.schema.names and is_text(table, name)]
        for batch in table.batches(own_names) if own_names else ():
            for name in own_names:
                found[name].add(batch.column(name))
    return found


def _own_mark(facts: _Facts) -> DecimalMark | None:
    """Return the decimal mark that all numbers of a column can have, where it is one."""
    can = [mark for mark in READABLE if facts.numbers and facts.readable[mark] == facts.numbers]
    return can[0] if len(can) == 1 else None


def _orders(facts: _Facts) -> list[DateOrder]:
    """Return the orders that all dates of a column can have."""
    can = [order for order in ORDERS if facts.dates and facts.orders[order] == facts.dates]
    if len(can) > 1 and "day_first" in can and facts.is_dotted:
        return ["day_first"]  # whoever has the month first writes slashes
    return can if facts.differ else can[:1]


@dataclass(frozen=True)
class _Known:
    """Hints on a column's notation from outside of it."""

    spec: DatasetSpec
    marks: set[DecimalMark]
    """Decimal marks of columns that show theirs."""
    orders: set[DateOrder]
    """Orders of dates of columns that show theirs."""
    is_english: bool
    """Whether no file parts its columns by another delimiter than a comma."""


def _decide(facts: _Facts, known: _Known, *, is_number: bool) -> NumberForm | Unread | None:
    """Return how a column is written; None where it holds names. `is_number`: as the user says."""
    if not facts.known:
        return None
    if facts.numbers == facts.known and facts.numbers >= facts.dates:
        is_name = facts.is_code or (facts.is_plain and (facts.is_typed or not facts.missing))
        return None if is_name and not is_number else _number_form(facts, known)
    if facts.dates == facts.known:
        return _date_form(facts, known)
    for kind, number in (("number", facts.numbers), ("date", facts.dates)):
        if number > (1 - MISTAKES) * facts.known:
            wrong = facts.shown[f"no {kind}"]
            reason = (
                f"holds {kind}s, and '{wrong}' there ({facts.known - number:,} such rows); leave "
                "such cells empty where nothing is known, or list the column in "
                "dataset.categories if its values are names"
            )
            return Unread(reason, wrong)
    return None


def _number_form(facts: _Facts, known: _Known) -> NumberForm | Unread:
    units = facts.units - {""}
    if len(units) > 1 or ("%" in units and "" in facts.units):
        shown = " and ".join(f"'{unit}'" if unit else "none" for unit in sorted(facts.units))
        return Unread(f"holds amounts of several units ({shown}); write them in one")
    marks = [mark for mark in READABLE if facts.marks[mark]]
    mark, is_amount = _own_mark(facts), bool(units) or facts.is_parted
    can_be_both = all(facts.readable[one] == facts.numbers for one in READABLE)
    if (mark is None and not can_be_both) or (mark is None and len(marks) == 2):
        kind = "either" if can_be_both else "decimal"
        wrong = facts.shown[f"{kind} ,"]
        reason = (
            f"holds numbers with decimal points and with decimal commas "
            f"('{facts.shown[f'{kind} .']}' and '{wrong}'); write them alike, in all files"
        )
        return Unread(reason, wrong)
    if mark is None and marks:
        mark = known.spec.decimal or (next(iter(known.marks)) if len(known.marks) == 1 else None)
        # 12.500 in an English CSV file is a weight; 1.000 EUR is not, nor what a table has as text.
        is_plain_english = known.is_english and not facts.is_typed and not units
        if mark is None and facts.looks_parted and not (marks == ["."] and is_plain_english):
            mark = "," if marks == ["."] else "."
        if mark is None and (marks == ["."] or known.is_english):
            mark = "."
        if mark is None:
            shown = facts.shown[f"either {marks[0]}"]
            return Unread(
                f"holds numbers such as '{shown}', whose comma may be a decimal one or stand "
                "between thousands; set dataset.decimal: ',' or '.'"
            )
        is_amount |= mark != marks[0]
    return NumberForm(kind="number", decimal=mark or ".", is_amount=is_amount)


def _date_form(facts: _Facts, known: _Known) -> NumberForm | Unread:
    can = _orders(facts)
    if not can:
        shown = [facts.shown[f"only {one}"] for one in ORDERS if f"only {one}" in facts.shown]
        shown = shown or [facts.shown["no number"]]
        examples = "', '".join(shown)
        reason = f"holds dates in several orders ('{examples}'); write them alike"
        return Unread(reason, shown[0])
    told = [one for one in can if one == known.spec.dates] or [
        one for one in can if known.orders == {one}
    ]
    if len(can) > 1 and not told:
        ways = " or ".join(can)
        return Unread(
            f"holds dates whose day and month cannot be told apart ('{facts.shown['differs']}'); "
            f"set dataset.dates: {ways}, or write them as 2017-12-31"
        )
    return NumberForm(kind="date", order=(told or can)[0])


def _as(facts: _Facts, form: NumberForm) -> str:
    """Return a text of a column and what it is read as, for a sentence."""
    kinds = ["unit", "parted", "either ,", "either .", f"only {form.order}", form.order]
    text = next(facts.shown[kind] for kind in kinds if kind in facts.shown)
    value = form.read(pa.array([text]))[0].as_py()
    return f"'{text}' is {value:.10g}" if form.kind == "number" else f"'{text}' is {value:%Y-%m-%d}"


def _tell(facts: Mapping[str, _Facts], forms: Mapping[str, NumberForm], say: Say) -> None:
    """Say how columns are read, those of one kind in one sentence."""
    lines: dict[str, list[str]] = {}
    for name, form in forms.items():
        own = facts[name]
        if form.kind == "date":
            order = SHOWN[form.order]
            lines.setdefault(f"dates are read as {order}", []).append(f"{name} ({_as(own, form)})")
        elif form.is_amount or own.marks.total():
            lines.setdefault("numbers are read as they are written", []).append(
                f"{name} ({_as(own, form)})"
            )
        if own.missing:
            shown = ", ".join(f"'{text}' in {number:,}" for text, number in own.missing.items())
            lines.setdefault("cells taken as missing", []).append(f"{name} ({shown})")
    for begin, columns in lines.items():
        more = ", ..." if len(columns) > MAX_SHOWN else ""
        say(f"{begin}: {', '.join(columns[:MAX_SHOWN])}{more}.")
