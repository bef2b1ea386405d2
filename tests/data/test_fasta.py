"""Aligned sequences in FASTA files: round trips, faults, and couplings that were planted."""

import gzip
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncpretrain import load, pretrain
from syncpretrain.data.columns import takes_categories
from syncpretrain.data.fasta import AMINO_ACIDS, read_fasta
from syncpretrain.data.readers import Wanted, read_rows
from syncpretrain.data.weights import BLOCK_BYTES, sequence_weights
from syncpretrain.errors import DataError
from syncpretrain.models.couplings import couplings

TEXT = ">first one\nACDE\nfg--\n\n>second\nACDX\n..HI\n"


def written(tmp_path, text, name="x.fasta"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read(path, **wanted):
    return read_rows(path, Wanted(encode=True, **wanted))


def letters_of(rows):
    """Return the sequences that rows stand for, with ? for a missing letter."""
    columns = rows.columns.decode(np.nan_to_num(rows.X, nan=0.0))
    lost = np.isnan(rows.X).reshape(len(rows.X), len(columns), -1).all(axis=2)
    found = np.array(list(columns.values())).T
    found[lost] = "?"
    return ["".join(row) for row in found]


class TestReading:
    @pytest.mark.parametrize("name", ["x.fasta", "x.fa", "x.afa.gz", "X.FASTA"])
    def test_lines_wrap_gaps_count_and_unknown_letters_are_missing(self, tmp_path, name):
        rows = read(written(tmp_path, TEXT, name))
        assert letters_of(rows) == ["ACDEFG--", "ACD?--HI"]
        assert rows.columns.visible_units() == "softmax:8x21"
        assert rows.columns.names[20:22] == ["1=-", "2=A"]
        assert rows.columns.owner_names == list("12345678")
        assert rows.notices[0].endswith("read 1 unknown letters such as 'X' as missing values")

    def test_nucleotides_are_read_as_amino_acids_and_told_so(self, tmp_path):
        for letters in ("ACGT", "ACGUN-"):
            rows = read(written(tmp_path, f">a\n{letters}\n>b\n{letters[::-1]}\n"))
            assert "has the letters of DNA or RNA alone" in rows.notices[0]
        assert not read(written(tmp_path, ">a\nACGT\n>b\nACGD\n")).notices

    def test_without_gaps_there_are_20_choices(self, tmp_path):
        rows = read(written(tmp_path, ">a\nACD\n>b\nWYA"))
        assert (rows.columns.visible_units(), rows.X.shape) == ("softmax:3x20", (2, 60))
        np.testing.assert_array_equal(rows.X.reshape(2, 3, 20).sum(axis=2), 1)

    @given(
        st.integers(1, 12).flatmap(
            lambda length: st.lists(
                st.text(AMINO_ACIDS + "-", min_size=length, max_size=length), min_size=1, max_size=8
            )
        ),
        st.integers(1, 5),
    )
    def test_what_is_written_is_read(self, tmp_path_factory, sequences, width):
        wrapped = "".join(
            f">{n}\r\n" + "".join(f"{s[i : i + width]}\r\n" for i in range(0, len(s), width))
            for n, s in enumerate(sequences)
        )
        assert letters_of(read(written(tmp_path_factory.mktemp("fasta"), wrapped))) == sequences

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (">a\nACD\n>b c\nAC\n", "sequence 2, 'b c', has 2 positions, expected the 3"),
            (">a\nACD\n>b\n>c\nACD", "sequence 2, 'b', is empty"),
            (">a\nACD\n>b\nA1D", "sequence 2, 'b', has '1' at position 2, expected a letter"),
            (">a\nACä", "sequence 1, 'a', has 'ä' at position 3"),
            (">a\nacde\n>b\nAßC\n", "sequence 2, 'b', has 'ß' at position 2"),
            (">a\nacd\n>b\nacß\n", "sequence 2, 'b', has 'ß' at position 3"),
            (">a\nACD\n>b\nA\u00a0D\n", r"sequence 2, 'b', has '\\xa0' at position 2"),
            (">a\n*\n>b\n*\n", "sequence 1, 'a', is empty"),
            ("ACD\n", "got 'ACD' in line 1, expected the name of a sequence behind a >"),
            ("\n", "got no sequences"),
            (">a\nX\n>b\nX", "column '1' has no value in any row"),
        ],
    )
    def test_faults_are_told_in_one_sentence(self, tmp_path, text, message):
        with pytest.raises(DataError, match=message) as error:
            read(written(tmp_path, text))
        assert "\n" not in str(error.value)

    def test_comments_and_a_stop_of_every_sequence_are_left_out(self, tmp_path):
        rows = read(written(tmp_path, "; of a database\n>a\nAC\n;more\nD*\n>b\nAC-*\n"))
        assert letters_of(rows) == ["ACD", "AC-"]
        assert not rows.notices
        some = read(written(tmp_path, ">a\nACD*\n>b\nACDE\n", "y.fasta"))
        assert letters_of(some) == ["ACD?", "ACDE"]


class TestWeights:
    def test_rows_of_a_file_have_the_weights_of_its_sequences(self, tmp_path):
        sequences = ["ACDEF", "ACDEX", "ACDEY", "WWWWW", "W-WWW", "YYYYY"]
        rows = read(written(tmp_path, "".join(f">{x}\n{x}\n" for x in sequences)))
        found = sequence_weights(rows.X, units=rows.columns.visible_units())
        np.testing.assert_array_equal(found, sequence_weights([list(x) for x in sequences]))
        np.testing.assert_array_equal(found, [1 / 3] * 3 + [1 / 2] * 2 + [1])
        with pytest.raises(DataError, match="which may be softmax groups or letters; give units"):
            sequence_weights(rows.X)
        with pytest.raises(DataError, match="X: got 105 columns of float32, expected 63 columns"):
            sequence_weights(rows.X, units="softmax:3x21")
        with pytest.raises(DataError, match="no single choice"):
            sequence_weights(rows.X, units="softmax:21x5")
        with pytest.raises(DataError, match="units: got 'letters', expected kinds"):
            sequence_weights(rows.X, units="letters")

    def test_other_columns_are_sites_and_bits_are_letters(self):
        X = [[0.5, 1, 0], [0.5, 0, 1], [2, 0, 1]]
        found = sequence_weights(X, units="gaussian:1,softmax:1x2", within=0.5)
        np.testing.assert_array_equal(found, [1 / 2, 1 / 3, 1 / 2])
        np.testing.assert_array_equal(sequence_weights([[0, 1], [1, 0]], units="bernoulli"), [1, 1])

    def test_letters_that_each_site_has_of_its_own_take_little_memory(self):
        X = np.arange(16_000).reshape(4, 4000)
        X[1] = X[0]
        tracemalloc.start()
        found = sequence_weights(X)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_array_equal(found, [0.5, 0.5, 1, 1])
        assert peak < 2.5 * BLOCK_BYTES

    @pytest.mark.parametrize(
        ("X", "within", "message"),
        [
            ([list("ACD"), list("AC")], 0.2, "X: got sequences of different lengths"),
            ([["A", None], ["A", "C"]], 0.2, "X: got letters of several types, or None"),
            ([[1, 2]], None, "within: got None, expected a number"),
            ([[1, 2]], "a", "within: got 'a', expected a number"),
        ],
    )
    def test_no_sequences_are_refused_in_one_sentence(self, X, within, message):
        with pytest.raises(DataError, match=message):
            sequence_weights(X, within=within)


class TestOtherFiles:
    def test_a_damaged_archive_and_bytes_are_refused(self, tmp_path):
        path = written(tmp_path, TEXT, "x.fa.gz")
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(DataError, match="damaged gzip data"):
            read_fasta(path)
        path.write_bytes(b">a\n\xff\xfe\n")
        with pytest.raises(DataError, match="expected FASTA"):
            read_fasta(path)

    def test_units_of_numbers_are_refused(self, tmp_path):
        assert takes_categories("softmax:3x20")
        with pytest.raises(DataError, match="take auto"):
            read_rows(written(tmp_path, ">a\nACD"), Wanted())

    def test_another_file_is_read_as_the_first_one_was(self, tmp_path):
        first = read(written(tmp_path, ">a\nACD\n>b\nA-D"))
        again = read(written(tmp_path, ">a\nWYV\n", "y.fasta"), columns=first.columns)
        assert again.X.shape == (1, 63)
        without = read(written(tmp_path, ">a\nACD\n", "z.fasta"))
        with pytest.raises(DataError, match="'-' at row 0"):
            read(written(tmp_path, ">a\nA-D\n", "w.fasta"), columns=without.columns)
        with pytest.raises(DataError, match="has 2 columns, expected the 3"):
            read(written(tmp_path, ">a\nAC\n", "v.fasta"), columns=without.columns)


PLANTED = [(0, 7), (2, 9), (3, 5)]


def potts_sequences(count: int) -> list[str]:
    """Draw sequences of 10 positions from a Potts model with couplings of three pairs."""
    draws, letters = np.random.default_rng(0), np.array(list("ACDEF"))
    fields = 0.5 * draws.normal(size=(10, 5))
    matrices = {pair: 2 * np.eye(5)[draws.permutation(5)] for pair in PLANTED}
    x = draws.integers(5, size=(count, 10))
    for _ in range(40):
        for i in range(10):
            logs = np.tile(fields[i], (count, 1))
            for (a, b), matrix in matrices.items():
                if i == a:
                    logs += matrix[:, x[:, b]].T
                if i == b:
                    logs += matrix[x[:, a]]
            x[:, i] = (logs + draws.gumbel(size=logs.shape)).argmax(axis=1)
    return ["".join(row) for row in letters[x]]


def connected(X: np.ndarray) -> list[np.ndarray]:
    """Return frequencies, and connected correlations of two and of three units, of one-hot rows."""
    X = X.reshape(len(X), 10, 20)[:, :, :5].reshape(len(X), 50).astype(float)
    off = X - X.mean(axis=0)
    three = np.einsum("ni,nj,nk->ijk", off, off[:, ::3], off[:, ::7], optimize=True)
    return [X.mean(axis=0), off.T @ off / len(X), three / len(X)]


def test_planted_couplings_are_the_strongest_and_samples_have_the_correlations(tmp_path):
    text = "".join(f">{n}\n{s[:6]}\n{s[6:]}\n" for n, s in enumerate(potts_sequences(2000)))
    rows = read(written(tmp_path, text))
    options = {"epochs": 100, "batch_size": 100, "learning_rate": 0.1, "momentum": "0.5"}
    options |= {"persistent": True, "cd_steps": 5, "visible_bias": "log-odds"}
    stack = pretrain(rows.X, layers=[200, 20], visible_units="softmax:10x20", **options)
    first, second = np.triu_indices(10, 1)
    for corrected in (True, False):
        found = couplings(stack.layers[0], corrected=corrected)[first, second]
        order = np.argsort(-found)
        assert {(int(first[k]), int(second[k])) for k in order[:3]} == set(PLANTED)
        assert found[order[2]] > 3 * found[order[3]]
    held_out = "".join(f">{n}\n{s}\n" for n, s in enumerate(potts_sequences(4000)[2000:]))
    other = read(written(tmp_path, held_out, "other.fasta"), columns=rows.columns).X
    samples = stack.sample(2000, level=1, steps=200)
    # Two halves of the data themselves agree by 0.99, 0.99 and 0.86.
    for least, a, b in zip((0.88, 0.93, 0.7), connected(samples), connected(other), strict=True):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > least


@pytest.mark.usefixtures("fonts")
def test_a_run_on_sequences_has_their_couplings_in_its_report(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "".join(f">{n}\n{s}\n" for n, s in enumerate(potts_sequences(200)))
    written(tmp_path, text, "x.fasta")
    small = ("--hidden", 6, "--epochs", 2, "--quiet", "--out", "run")
    call("train", "--data", "x.fasta", "--visible-units", "auto", *small)
    assert load("run").units[0] == "softmax:10x20"
    said, _ = call("sample", "run", "--steps", 8, "--save", "s.npy")
    assert said.startswith("s.npy: 20 samples after 8 steps from noise\nlevel 1, gibbs: 50 chains")
    call("report", "run", "--out", "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Couplings of positions" in page
    assert "Strongest couplings" in page
    picture = next(x for x in page.split("<svg") if "couplings-map" in x)
    assert ">0</text>" not in picture, "positions count from 1"
    assert "take auto" in call("train", "--data", "x.fasta", *small[:-1], "other", status=2)[1]
