"""Data frames of pandas and polars: their columns by name, categories, and what is refused."""

from decimal import Decimal

import numpy as np
import pytest

from syncpretrain import finetune, pretrain
from syncpretrain.data.columns import Column, Columns, columns_in, columns_of
from syncpretrain.data.frames import table_of
from syncpretrain.errors import DataError

N = 40
SMALL = {"layers": [2, 3], "epochs": 1, "batch_size": 10}


@pytest.fixture(params=["pandas", "polars"])
def library(request):
    return pytest.importorskip(request.param, reason=f"needs {request.param}")


@pytest.fixture
def frame(library):
    draws = np.random.default_rng(0)
    return library.DataFrame({"a": draws.random(N), "b": draws.integers(0, 2, N).astype(bool)})


def rows_of(frame):
    """Return the encoded rows of a frame, those with missing values too, and its columns."""
    columns = columns_of(table_of(frame), encode=True)
    return columns.encode(table_of(frame)), columns


def test_the_same_bits_as_of_an_array(frame):
    X = np.column_stack([np.asarray(frame["a"]), np.asarray(frame["b"])]).astype(np.float32)
    stack = pretrain(frame, validation=frame, **SMALL)
    assert stack.parameters_sha256 == pretrain(X, **SMALL).parameters_sha256
    np.testing.assert_array_equal(stack.encode(frame), stack.encode(X))
    kinds = [(column.name, column.kind) for column in columns_in(stack.info).features]
    assert kinds == [("a", "number"), ("b", "binary")]


def test_columns_are_found_by_their_names(frame):
    stack = pretrain(frame, **SMALL)
    np.testing.assert_array_equal(stack.encode(frame[["b", "a"]]), stack.encode(frame))
    with pytest.raises(DataError, match=r"^X: lacks the column 'b' that was trained on"):
        stack.encode(frame[["a"]])
    labels = np.arange(N) % 2
    options = {"epochs": 1, "batch_size": 10}
    options |= {"validation": frame, "validation_y": labels, "patience": 1}
    there = finetune(stack, frame, labels, **options).parameters_sha256
    turned = frame[["b", "a"]]
    options["validation"] = turned
    assert finetune(stack, turned, labels, **options).parameters_sha256 == there


def test_texts_and_categories(library):
    made = {"t": ["x", None, "y"], "n": [1, None, 3], "s": ["v", "v", "v"]}
    X, columns = rows_of(library.DataFrame(made))
    assert columns.names == ["t=x", "t=y", "n"]
    np.testing.assert_array_equal(X, [[1, 0, 1], [np.nan] * 3, [0, 1, 3]])


def test_a_column_without_any_value_is_missing_when_it_was_trained_on(library):
    """Such a column has no type of its own."""
    made = {"n": [1.5, 2.0, 4.0], "b": [True, False, True], "k": ["u", "v", "u"]}
    columns = columns_of(table_of(library.DataFrame(made)), encode=True)
    empty = library.DataFrame({name: [None] * 3 for name in made})
    assert np.isnan(columns.encode(table_of(empty))).all()


def test_a_missing_number_of_any_width_is_no_text(pandas):
    cells = [np.float32("nan"), "u", np.float64("nan"), "v"]
    X, columns = rows_of(pandas.DataFrame({"t": pandas.Series(cells, dtype=object)}))
    assert columns.names == ["t=u", "t=v"]
    np.testing.assert_array_equal(X, [[np.nan] * 2, [1, 0], [np.nan] * 2, [0, 1]])


def test_a_frame_without_rows(library, frame):
    with pytest.raises(DataError, match=r"^X: got no rows, expected one example or more$"):
        pretrain(library.DataFrame({"a": []}), hidden=3)
    stack = pretrain(frame, hidden=2, epochs=1)
    with pytest.raises(DataError, match=r"^X: got no rows, expected one example or more$"):
        stack.encode(frame[:0])


def test_numbers_that_are_a_category(pandas):
    X, columns = rows_of(pandas.DataFrame({"k": pandas.Categorical([3, 7, 3, None])}))
    assert columns.features[0].values == ("3", "7")
    np.testing.assert_array_equal(X, [[1, 0], [0, 1], [1, 0], [np.nan, np.nan]])


def test_numbers_with_a_unit_are_a_category_where_the_type_says_so(library):
    texts = [f"{i}.5 kg" for i in range(30)] * 2
    with pytest.raises(DataError, match=r"'w' holds numbers with the unit 'kg'.* column out$"):
        rows_of(library.DataFrame({"w": texts}))
    kind = "category" if library.__name__ == "pandas" else library.Categorical
    assert rows_of(library.DataFrame({"w": library.Series(texts, dtype=kind)}))[1].width == 30


def test_numbers_as_text_beside_an_error_of_a_spreadsheet(library):
    frame = library.DataFrame({"t": ["1.5", "#DIV/0!", None, "-2"], "n": [1, 2, 3, 4]})
    with pytest.raises(DataError, match="'t' holds numbers as text beside '#DIV/0!'; convert them"):
        rows_of(frame)
    assert rows_of(library.DataFrame({"t": ["1.5", "#", "x"]}))[1].width == 3


def test_nullable_types_of_pandas(pandas):
    frame = pandas.DataFrame(
        {
            "n": pandas.array([1, None, 3], dtype="Int64"),
            "b": pandas.array([True, None, False], dtype="boolean"),
            "t": pandas.array(["x", None, "y"], dtype="string"),
        }
    )
    X, columns = rows_of(frame)
    assert [column.kind for column in columns.features] == ["number", "binary", "category"]
    np.testing.assert_array_equal(X, [[1, 1, 1, 0], [np.nan] * 4, [3, 0, 0, 1]])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [0.5, 2.0]}, "^X: got 2 at row 1 .*, column 'a', expected values in"),
        ({"a": [0.5, float("inf")]}, "^X: got inf at row 1 .*, column 'a', expected finite"),
        ({"a": [0.5, 1], "t": ["x", "y"], "c": [0, 1]}, "column 't' holds text such as 'x'"),
        ({"a": [0.5, 1], "t": [None, None]}, "column 't' has no value in any row"),
    ],
)
def test_errors_name_the_column(library, columns, words):
    with pytest.raises(DataError, match=words):
        pretrain(library.DataFrame(columns), visible_units="bernoulli", **SMALL)


def test_values_of_other_types(pandas):
    frame = pandas.DataFrame({"d": pandas.to_datetime(["2020-01-01", "2021-01-01"])})
    with pytest.raises(DataError, match="column 'd' holds values of type datetime64"):
        rows_of(frame)
    known = Columns((Column("1", "number"),), named=False)
    with pytest.raises(DataError, match="column 'd' holds values of type datetime64"):
        known.encode(table_of(frame))
    with pytest.raises(DataError, match=r"column 'l' holds values of type list.*; leave it out$"):
        rows_of(pandas.DataFrame({"l": [[1], [2]]}))
    with pytest.raises(DataError, match="two columns of the name 'a'"):
        table_of(pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(DataError, match="'m' holds numbers and text, such as '1' and 'x'"):
        rows_of(pandas.DataFrame({"m": [1, "x", 2]}))


def test_values_that_a_block_of_units_cannot_have(library):
    frame = library.DataFrame({"n": [1.5, 2.0, 4.0], "b": [1, 0, 1]})
    stack = pretrain(frame, layers=[2, 3], epochs=1, batch_size=3, visible_units="auto")
    assert stack.units[0] == "gaussian:1,bernoulli:1"
    frame = library.DataFrame({"n": [1.5, 2.0, 4.0], "b": [1, 2, 0]})
    text = r"^X: got 2 at row 1 .*, column 'b', expected values in"
    with pytest.raises(DataError, match=text):
        stack.encode(frame)
    with pytest.raises(DataError, match=text):
        pretrain(frame, **SMALL, visible_units=stack.units[0])


def test_a_plan_for_a_frame_is_refused():
    polars = pytest.importorskip("polars", reason="needs polars")
    with pytest.raises(DataError, match=r"^X: got a LazyFrame, expected a DataFrame; pass"):
        pretrain(polars.LazyFrame({"a": [0.5, 1]}), **SMALL)


def test_units_by_what_the_values_are(library, frame):
    assert pretrain(frame, visible_units="auto", **SMALL).units[0] == "bernoulli"
    X = np.asarray(frame["a"])[:, None] * [3, 5]
    assert pretrain(X, visible_units="auto", **SMALL).units[0] == "gaussian"
    wide = library.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    assert pretrain(wide, hidden=3, epochs=1).units[0] == "gaussian", "without units"


def test_decimals_in_a_data_frame_are_numbers(pandas):
    cells = [Decimal("1.25"), None, Decimal("-3"), Decimal("NaN")]
    found = table_of(pandas.DataFrame({"price": pandas.Series(cells, dtype=object)}))
    assert found.refused == found.mixed == {}
    np.testing.assert_array_equal(found.columns[0], [1.25, np.nan, -3, np.nan])
