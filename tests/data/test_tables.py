"""Tables: what CSV files hold, the kinds of columns, and rows as float32 and back."""

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syncpretrain.array_files import write_record
from syncpretrain.data import load_dataset
from syncpretrain.data.columns import Column, Columns, Target, columns_in, columns_of, read_columns
from syncpretrain.data.csv_table import read_csv_table
from syncpretrain.data.table import Table, Texts, texts_of
from syncpretrain.errors import DataError

TEXT = "age,colour,sex,wet,kind\n30,red,0,true,x\n,green,1,false,x\n25.5,red,1,TRUE,x\n"


def table(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text)
    return read_csv_table(path)


def cells(values):
    """Return a column as a list, with None for what is missing."""
    if isinstance(values, Texts):
        return [None if code < 0 else values.values[code] for code in values.codes]
    return [None if value != value else value for value in values.tolist()]


class TestReading:
    def test_each_column_is_what_it_holds(self, tmp_path):
        found = table(tmp_path, TEXT)
        assert found.names == ("age", "colour", "sex", "wet", "kind")
        assert [cells(column) for column in found.columns] == [
            [30, None, 25.5],
            ["red", "green", "red"],
            [0, 1, 1],
            [True, False, True],
            ["x", "x", "x"],
        ]

    @pytest.mark.parametrize("missing", ["", "NaN", "nan", "NA", "N/A", "null", "None"])
    def test_missing_cells(self, tmp_path, missing):
        found = table(tmp_path, f"a,b\n1,x\n{missing},y\n3,{missing}\n")
        assert cells(found.column("a")) == [1, None, 3]
        assert cells(found.column("b")) == ["x", "y", None]
        numbers = table(tmp_path, f"0,1\n0,{missing}\n1,0\n")
        assert [cells(column) for column in numbers.columns] == [[0, 0, 1], [1, None, 0]]

    def test_quotes_comments_and_empty_lines(self, tmp_path):
        found = table(tmp_path, '"a","b c"\n\n1,"x, y"\n# nothing\n2,"z"\n')
        assert (found.names, cells(found.column("b c"))) == (("a", "b c"), ["x, y", "z"])

    def test_more_lines_than_are_read_at_once(self, tmp_path, monkeypatch):
        monkeypatch.setattr("syncpretrain.data.csv_table.LINES_AT_ONCE", 2)
        found = table(tmp_path, "a,b\n1,x\n2,y\n3,\n4,x\n5,z\n")
        assert cells(found.column("a")) == [1, 2, 3, 4, 5]
        assert cells(found.column("b")) == ["x", "y", None, "x", "z"]

    @pytest.mark.parametrize("rest", ["1,2\n", "1,x\n"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_a_name_may_have_several_lines(self, tmp_path, rest, end):
        found = table(tmp_path, f'\na,"b{end}(in{end}cm)"{end}{rest}')
        assert (found.names, len(found)) == (("a", f"b{end}(in{end}cm)"), 1)
        assert cells(found.column("a")) == [1]

    @pytest.mark.parametrize("text", ['a,b\n1,x\n2,"y\n3,z\n4,x\n', 'a\nx\n"y\nz\n'])
    def test_a_quote_that_does_not_end_takes_no_other_rows(self, tmp_path, text):
        with pytest.raises(DataError, match="a quote in the row that begins in line 3 has no end"):
            table(tmp_path, text)
        assert cells(table(tmp_path, 'a,b\n1,"x\n#y"\n2,z\n').column("b")) == ["x\n#y", "z"]

    def test_a_column_without_a_name_has_its_number(self, tmp_path):
        found = table(tmp_path, ",a\n0,5\n1,6\n")
        assert found.names == ("1", "a")
        assert "its first column has no name" in found.notices[0]

    def test_comments_as_wide_as_rows_are_reported(self, tmp_path):
        found = table(tmp_path, "a,b\n#f00,1\nred,2\n# end\n")
        assert cells(found.column("a")) == ["red"]
        assert "passed over 1 lines that begin with #, such as line 2" in found.notices[0]

    @pytest.mark.parametrize("cell", ["#N/A", "#DIV/0!", "#REF!", "#NAME?", "#WERT!", "#NV"])
    @pytest.mark.parametrize("rest", ["", ",x"])
    def test_an_error_of_a_spreadsheet_is_a_missing_value(self, tmp_path, cell, rest):
        rows = [f"{cell},3{rest}", f"2.5,4{rest}", f"1,{cell}{rest}", f"  {cell},6{rest}"]
        for names in ("", "t,h,k\n" if rest else "t,h\n"):
            found = table(tmp_path, names + "\n".join(rows) + "\n")
            assert cells(found.columns[0]) == [None, 2.5, 1, None]
            assert cells(found.columns[1]) == [3, 4, None, 6]
            words = f"{tmp_path / 'x.csv'}: read 3 cells such as {cell} as missing values"
            assert found.notices == (words,)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("t\n1\n#N/A\n3\n", [1, None, 3]),
            ("t\n1\n #REF!\n3\n", [1, None, 3]),
            ("a,t\n1,-1.#IND\n2,1.#QNAN\n3,4\n", [None, None, 4]),  # as Windows writes them
            ("t\n1_000\n1_001\n", ["1_000", "1_001"]),
            ("k,t\n1,?\n?,y\n", ["?", "y"]),
            ("t,k\n1,?\n?,y\n", [1, None]),
            ("t\nroom 12\nroom 13\n", ["room 12", "room 13"]),
            ("t\n5 stars\n4 stars\n", ["5 stars", "4 stars"]),
            ("t\n12:30\n12:45\n", ["12:30", "12:45"]),
        ],
    )
    def test_a_column(self, tmp_path, text, expected):
        assert cells(table(tmp_path, text).column("t")) == expected

    def test_a_text_in_quotes_is_no_comment(self, tmp_path):
        found = table(tmp_path, 'c,n\n"#f00",1\n"red",2\n"#0f0",3\n')
        assert cells(found.column("c")) == ["#f00", "red", "#0f0"]
        assert not found.notices

    @pytest.mark.parametrize("names", ["", "a,b\n"])
    def test_rows_of_numbers_that_are_commented_out_are_counted(self, tmp_path, names):
        found = table(tmp_path, f"{names}1.5,2\n#3,4\n# a remark\n5,6 # another\n#7,8\n")
        assert cells(found.columns[0]) == [1.5, 5]
        line = 2 + bool(names)
        assert f"passed over 2 lines that begin with #, such as line {line}" in found.notices[0]

    @pytest.mark.parametrize(
        ("text", "names", "rows"),
        [
            ("# made by x\n1.5,2\n3,4\n", ("1", "2"), 2),
            ("# made by x\n#\na,b\n1,2\n", ("a", "b"), 1),
            ("# Source: NOAA, 2019\na,b\n1,2\n", ("a", "b"), 1),
            ("# height, weight\na,b\n1,2\n", ("a", "b"), 1),
            ("# about\n# a,b\n1,2\n", ("a", "b"), 1),
            ("# a,b\nred,x\nblue,y\n", ("a", "b"), 2),
            ("# a,b\n1,2\n", ("a", "b"), 1),  # as NumPy writes them
            ("\n\na,b\n1,2\n", ("a", "b"), 1),
            ("\n\na,b\n1,x\n", ("a", "b"), 1),
            ('"a;1","b, 2"\n1,2\n', ("a;1", "b, 2"), 1),
            ('"a;1","b, 2"\n1,x\n', ("a;1", "b, 2"), 1),
            ('height 5",b\n1,2\n3,4\n', ('height 5"', "b"), 2),
            ("a,2019_1,2019_2\n1,2,3\n", ("a", "2019_1", "2019_2"), 1),
        ],
    )
    def test_names(self, tmp_path, text, names, rows):
        found = table(tmp_path, text)
        assert (found.names, len(found), found.notices) == (names, rows, ())

    @pytest.mark.parametrize("cell", ["1", "u"])
    def test_empty_lines_between_the_rows_of_one_column_are_counted(self, tmp_path, cell):
        found = table(tmp_path, f'x\n{cell}\n\n{cell}\n""\n{cell}\n\n')
        assert [value is None for value in cells(found.column("x"))] == [False, False, True, False]
        assert "passed over 1 lines that are empty, such as line 3; write NA" in found.notices[0]
        assert table(tmp_path, f"x,y\n{cell},2\n\n{cell},4\n").notices == ()

    def test_the_index_of_a_data_frame_beside_names_that_count(self, tmp_path):
        found = table(tmp_path, ",0,1,2\n0,.5,.6,.7\n1,.5,.6,.7\n")
        assert (found.names, len(found)) == (("unnamed 1", "0", "1", "2"), 2)
        assert "with drop='unnamed 1'" in found.notices[1]

    @pytest.mark.parametrize(
        ("text", "got"),
        [
            ("\n".join("|".join("01011010"[i:] + "0" * i) for i in range(8)), "'[|]'"),
            ("\n".join(" ".join("01011010"[i:] + "0" * i) for i in range(8)), "blanks"),
            ("\n".join(":".join("01011010"[i:] + "0" * i) for i in range(8)), "':'"),
            ("a b\n0.5 1\n1.5 2\n", "blanks"),
            ("  1.0   2.0\n 11.0  -2.0\n", "blanks"),
            ('"a" "b"\n"1" 5.1 3.5\n"2" 4.9 3.0\n', "blanks"),
            ("5.1 3.5 setosa\n4.9 3.0 virginica\n", "blanks"),
            ("1,5 2,5\n3,7 4,1\n", "blanks"),
            ("name|colour\nanna|red\nbob|blue\n", "'[|]'"),
            ("a|b\n1,5|2,0\n", "'[|]'"),
            ("1 1:0.5 3:0.2\n-1 2:1\n", "blanks and the numbers of columns"),
        ],
    )
    def test_something_else_between_the_cells(self, tmp_path, text, got):
        with pytest.raises(DataError, match=f"x.csv: got {got} between .* a semicolon or a tab"):
            table(tmp_path, text)

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("mark", [",", ";", "\t"])
    @pytest.mark.parametrize("start", ["", "\ufeff"])
    def test_other_forms_of_a_file(self, tmp_path, end, mark, start):
        text = start + end.join(["a,b", "#N/A,1", "2,3", ""]).replace(",", mark)
        (tmp_path / "x.csv").write_bytes(text.encode())
        found = read_csv_table(tmp_path / "x.csv")
        assert [cells(column) for column in found.columns] == [[None, 2], [1, 3]]

    @pytest.mark.parametrize("target", [None, "a"])
    def test_commas_in_numbers(self, tmp_path, target):
        (tmp_path / "x.csv").write_text("a;b\n1,5;0,5\n2,5;1\n")
        drop = "b" if target is None else ()
        with pytest.raises(DataError, match="'a' holds numbers with commas, such as '1,5'"):
            load_dataset(tmp_path / "x.csv", target=target, drop=drop, encode=True)

    def test_bytes_that_are_no_text(self, tmp_path):
        (tmp_path / "x.csv").write_bytes(b"a,b\n\xff\xfe\n")
        with pytest.raises(DataError, match="no text"):
            read_csv_table(tmp_path / "x.csv")


class TestFind:
    NAMES = Table("x.csv", ("age", "colour", "class"), (np.zeros(1),) * 3)

    @pytest.mark.parametrize(
        ("wanted", "name"), [("age", "age"), ("1", "age"), ("3", "class"), ("-1", "class")]
    )
    def test_by_name_and_by_number(self, wanted, name):
        assert self.NAMES.find(wanted, "target") == name

    def test_a_name_goes_before_a_number(self):
        assert Table("x", ("2", "1"), (np.zeros(1),) * 2).find("1", "target") == "1"

    @pytest.mark.parametrize(
        ("wanted", "words"),
        [
            ("clas", "did you mean 'class'"),
            ("AGE", "did you mean 'age'"),
            ("zzz", "its columns are age, colour, class"),
            ("4", "its columns are"),
            ("0", "its columns are"),
            ("-4", "its columns are"),
        ],
    )
    def test_what_is_not_there(self, wanted, words):
        with pytest.raises(DataError, match=f"^target: got '{wanted}', .*{words}"):
            self.NAMES.find(wanted, "target")

    def test_a_name_with_commas_is_dropped_by_number(self):
        columns = Table("x.csv", ("age", "size, cm"), (np.zeros(1),) * 2)
        words = r"'size, cm'\? \(write a name with commas as its number, from 1\)$"
        with pytest.raises(DataError, match=rf"^drop: got 'size', .*{words}"):
            columns.find("size", "drop")


@pytest.mark.parametrize(("name", "option"), [("size, cm", "4"), ("a\nb", "4"), ("size", "size")])
@pytest.mark.parametrize("drop", [["day"], ["2"], ["id", "day"], []])
def test_the_hint_to_drop_a_column_counts_in_the_file(tmp_path, name, option, drop):
    """Also once other columns were dropped: the same command takes the hint."""
    texts = "".join(f"{i / 90},{i / 95},{i / 99},text {i},1\n" for i in range(90))
    (tmp_path / "x.csv").write_text(f'id,day,width,"{name}",y\n{texts}')
    with pytest.raises(DataError, match=f"too many .* leave it out with drop={option}$"):
        load_dataset(tmp_path / "x.csv", drop=drop, encode=True)
    data = load_dataset(tmp_path / "x.csv", drop=[*drop, option], encode=True)
    assert name not in [column.name for column in data.columns.features]


class TestColumns:
    @pytest.fixture
    def columns(self, tmp_path):
        return columns_of(table(tmp_path, TEXT), encode=True)

    def test_kinds(self, columns):
        assert columns.features == (
            Column("age", "number"),
            Column("colour", "category", ("green", "red")),
            Column("sex", "binary"),
            Column("wet", "binary"),
            Column("kind", "constant", ("x",)),
        )

    def test_encode_known_answer(self, columns, tmp_path):
        X = columns.encode(table(tmp_path, TEXT))
        assert X.dtype == np.float32
        expected = [[30, 0, 1, 0, 1], [np.nan, 1, 0, 1, 0], [25.5, 0, 1, 1, 1]]
        np.testing.assert_array_equal(X, expected)
        assert columns.names == ["age", "colour=green", "colour=red", "sex", "wet"]
        assert columns.owners.tolist() == [0, 1, 1, 2, 3]
        assert columns.owner_names == ["age", "colour", "sex", "wet"]

    UNITS_BEHIND = ("{}%", "{}.5 kg", "{},5 €", "1.{}K", "{} m/s", "{}\u00a0°C", "{} 200 g")
    UNITS_BEFORE = ("${}", "-${}.50", "USD {}")

    @pytest.mark.parametrize("text", [*UNITS_BEHIND, *UNITS_BEFORE])
    def test_numbers_with_a_unit_are_no_category(self, text):
        texts = [text.format(i) for i in range(1, 60)] + ["unknown"]
        many = Table("x", ("c",), (texts_of(texts * 5),))
        words = r"'c' holds numbers with the unit .* numbers alone"
        for encode in (True, False):
            with pytest.raises(DataError, match=words):
                columns_of(many, encode=encode)
        few = columns_of(Table("x", ("c",), (texts_of(texts[:20]),)), encode=True)
        assert few.features[0].kind == "category"

    @pytest.mark.parametrize("text", ["1 000", "-12 345.5", "1'200", "3\u202f000,5"])
    def test_numbers_with_blanks_are_no_category(self, text):
        texts = texts_of([text, f"9{text[-4:]}", text]) if text == "1 000" else texts_of([text] * 3)
        with pytest.raises(DataError, match="'c' holds numbers with blanks, such as"):
            columns_of(Table("x", ("c",), (texts,)), encode=True)

    NAMES = ("room {}", "A{}", "#{}", "CSE {}", "{}")
    DATES_AND_RANGES = ("{}-{}", "2020-01-{}", "{}:00", "1.{}.0", "{0}_{0}")

    @pytest.mark.parametrize("text", [*NAMES, *DATES_AND_RANGES])
    def test_texts_with_numbers_are_categories(self, text):
        texts = texts_of([text.format(i, i + 9) for i in range(10, 40)] * 2)
        found = columns_of(Table("x", ("c",), (texts,)), encode=True)
        assert (found.features[0].kind, found.width) == ("category", 30)

    def test_a_missing_category_is_nan_in_all_its_values(self, columns, tmp_path):
        X = columns.encode(table(tmp_path, TEXT.replace("green", "")))
        assert np.isnan(X[1]).tolist() == [True, True, True, False, False]

    def test_columns_are_found_by_their_names(self, columns, tmp_path):
        X = columns.encode(table(tmp_path, TEXT))
        given, order = table(tmp_path, TEXT), [3, 1, 4, 0, 2]
        names, values = (tuple(own[i] for i in order) for own in (given.names, given.columns))
        np.testing.assert_array_equal(columns.encode(Table("y", names, values)), X)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (TEXT.replace("colour", "color"), "lacks the column 'colour'.*did you mean 'color'"),
            (TEXT.replace("green", "blue"), "'colour' holds 'blue' at row 1.*expected green, red"),
            (TEXT.replace("x\n", "z\n"), "'kind' holds 'z' at row 0 .* not trained on; expected x"),
            ("z," + TEXT.replace("\n", "\n1,")[:-2], "has the column 'z', which was not trained"),
            (TEXT.replace("0,true", "f,true").replace("1,", "m,"), "'sex' holds text such as"),
        ],
    )
    def test_other_files_are_refused(self, columns, tmp_path, text, words):
        with pytest.raises(DataError, match=words):
            columns.encode(table(tmp_path, text))

    def test_a_category_of_numbers_meets_numbers(self):
        known = Columns((Column("k", "category", ("3", "7.5")),))
        X = known.encode(Table("x", ("k",), (np.array([7.5, 3, np.nan]),)))
        np.testing.assert_array_equal(X, [[0, 1], [1, 0], [np.nan, np.nan]])

    @pytest.mark.parametrize("has_target", [True, False])
    def test_without_names_columns_are_by_their_places(self, has_target):
        known = Columns((Column("2", "number"), Column("3", "number")), False, _target("1"))
        columns = (np.array([9.0]), np.array([1.0]), np.array([2.0]))[0 if has_target else 1 :]
        names = tuple(map(str, range(1, len(columns) + 1)))
        assert known.encode(Table("x", names, columns, False)).tolist() == [[1, 2]]

    @pytest.mark.parametrize(
        ("kinds", "text"),
        [
            ("bbb", "bernoulli"),
            ("nn", "gaussian"),
            ("bbn", "bernoulli:2,gaussian:1"),
            ("bnbb", "bernoulli:1,gaussian:1,bernoulli:2"),
            ("n334", "gaussian:1,softmax:2x3,softmax:1x4"),
            ("3", "softmax:1x3"),
            ("3c3b", "softmax:2x3,bernoulli:1"),
        ],
    )
    def test_visible_units(self, kinds, text):
        names = {"b": "binary", "n": "number", "c": "constant"}
        values = {"3": ("a", "b", "c"), "4": ("a", "b", "c", "d")}
        features = tuple(
            Column(str(i), names.get(kind, "category"), values.get(kind, ()))
            for i, kind in enumerate(kinds)
        )
        assert Columns(features).visible_units() == text

    def test_a_constant_among_numbers_is_a_number(self):
        columns = (np.zeros(3), np.array([1.0, 5, 2]), np.array([0.0, 1, 1]))
        found = columns_of(Table("x", ("a", "b", "c"), columns), encode=False)
        assert [column.kind for column in found.features] == ["number", "number", "binary"]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("a,b\n1,2\n3,o\n4,5\n", "got 'o' in line 3, field 2; expected numbers.* 'b'"),
            ("a,b\n1,2\n3,o\n4,p\n", "column 'b' holds numbers and text, such as '2' and 'o'"),
            ("a,b\n1,x\n2,y\n3,4\n", "column 'b' holds numbers and text, such as '4' and 'x'"),
            ("a,b\n1,\n2,\n", "column 'b' has no value in any row"),
            ("a,b\n1,\n2,x\n", "target: got none .* last column, 'b', holds text such as 'x'"),
            ("a,b\n1,x\n2,y,z\n", "got width 3 in line 3 after lines of width 2"),
            ("a,b,c\n1,x\n", "got 3 names of columns above lines of width 2"),
            ("a,a\n1,x\n", "got two columns of the name 'a'"),
            ('a,"b\nc"\n1,x\n2,y,z\n', "got width 3 in line 4 after lines of width 2"),
            ("id,x\n#1,3\n#2,4\n", "no values; passed over 2 lines that begin with #"),
            ("a,b\nx,1\ny,2\n", "got units of numbers .* column 'a' holds text such as 'x'; take"),
        ],
    )
    def test_what_cannot_be_trained_on(self, tmp_path, text, words):
        with pytest.raises(DataError, match=words):
            columns_of(table(tmp_path, text), encode=False)

    def test_texts_that_are_no_categories(self):
        names = Table("x", ("id",), (texts_of(f"n{i}" for i in range(50)),))
        with pytest.raises(DataError, match="'id' holds 50 different texts in 50 rows"):
            columns_of(names, encode=True)

    def test_they_are_kept_as_json(self, columns, tmp_path):
        columns = msgspec.structs.replace(columns, target=_target("y", "a", "b"))
        write_record(tmp_path / "columns.json", columns)
        assert read_columns(tmp_path / "columns.json") == columns
        assert columns_in({"columns": msgspec.to_builtins(columns)}) == columns
        assert columns_in({}) is read_columns(tmp_path / "no.json") is None

    def test_damaged_ones_are_refused(self, tmp_path):
        (tmp_path / "columns.json").write_text("{")
        with pytest.raises(DataError, match="cannot be read"):
            read_columns(tmp_path / "columns.json")
        with pytest.raises(DataError, match="damaged"):
            columns_in({"columns": {"features": 3}})


def _target(name, *classes):
    return Target(name, "classification", classes or None)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1))
def test_texts_come_back(values):
    found = texts_of(values)
    assert cells(found) == values
    assert list(found.values) == sorted({value for value in values if value is not None})


ROWS = st.tuples(st.floats(-1e6, 1e6, width=32), st.sampled_from("xyz"), st.booleans())


@given(st.lists(ROWS, min_size=1))
def test_rows_come_back(rows):
    numbers, texts, truths = zip(*rows, strict=True)
    given = Table("t", ("n", "t", "b"), (np.array(numbers), texts_of(texts), np.array(truths)))
    columns = columns_of(given, encode=True)
    found = columns.decode(columns.encode(given))
    assert found["n"].tolist() == list(numbers)
    assert found["t"].tolist() == list(texts)
    assert found["b"].tolist() == list(truths)


@given(
    st.text(alphabet='a1-,;\n\t"# .?naNA', max_size=60),
    st.booleans(),
    st.sampled_from([None, "1", "-1"]),
)
@example('"1\n1"\n?', False, None)
@example('"1\n1"\n;', False, None)
@example(";1\n1;", False, None)
def test_any_text_is_read_or_refused_in_one_sentence(text, encode, target):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_text(text, encoding="utf-8")
        try:
            data = load_dataset(path, target=target, encode=encode, bounded=False, validation=0)
        except DataError as error:
            assert "\n" not in str(error).replace(repr(text), "")
        else:
            assert data.train.dtype == np.float32
            assert not np.isinf(data.train).any()  # an empty cell is a missing value


@pytest.mark.parametrize(
    "text",
    [
        "time,temp\n2024-03-01 12:10:00,20.5\n2024-03-01 12:11:00,21.5\n",
        "v,t\n0.5,2024-03-01 12:10:00\n0.6,2024-03-01 12:11:00\n",
        "t,v\n01.03.2024 12:10,0.5\n02.03.2024 12:11,0.6\n",
        "a,b\n12:30,5\n12:45,6\n",
        "a,b\n5,12:30\n6,12:45\n",
        "a,b\n12:30:00,5\n12:31:00,6\n",
        "a,score,b\n2,1:3,4\n5,0:2,6\n",
        "a,b\n0 1,1 2\n1 1,2 2\n",
        "t\n2024-03-01 12:10:00\n2024-03-01 12:11:00\n",
    ],
)
def test_times_and_pairs_of_numbers_are_cells(tmp_path, text):
    assert len(table(tmp_path, text).names) == text.partition("\n")[0].count(",") + 1
