"""Files of examples: known answers in every format, and every way a file can be wrong."""

import gzip
import os
import pickle
import struct
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from syncpretrain.data import load_dataset
from syncpretrain.data.columns import Column, Columns, Target
from syncpretrain.data.csv_table import read_csv_table
from syncpretrain.data.readers import Wanted, load_own, read_rows
from syncpretrain.errors import DataError

X = (np.arange(24, dtype=np.float32) / 24).reshape(6, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def read_file(path):
    return read_rows(path, Wanted())[:2]


def idx_bytes(array, *, shape=None, kind=0x08):
    shape = array.shape if shape is None else shape
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + array.tobytes()


def refused(path, *words):
    with pytest.raises(DataError) as caught:
        load_dataset(path)
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert word in message
    assert "\n" not in message


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


COMMAS = "holds numbers with commas, such as"
NAMES, EXAMPLE = "was taken for names of columns", "was read as an example"


class TestTables:
    @pytest.mark.parametrize("name", ["x.csv.gz", "x.TSV.GZ", "x.csv"])
    def test_packed_csv(self, tmp_path, name):
        """Numbers alone, and a table with text, which is read otherwise."""
        path = tmp_path / name
        path.write_bytes(gzip.compress(b"\xef\xbb\xbfa,b\r\n0.5,1\r\n0.25,0\r\n"))
        assert read_file(path)[0].tolist() == [[0.5, 1], [0.25, 0]]
        path.write_bytes(gzip.compress(b"a,colour\n0.5,red\n0.25,blue\n0.75,red\n"))
        data = load_dataset(path, target="colour", validation=0)
        assert data.train.tolist() == [[0.5], [0.25], [0.75]]
        assert data.train_labels.tolist() == [1, 0, 1]

    @pytest.mark.parametrize("damage", [slice(0, 40), slice(0, 12)])
    def test_packed_csv_that_is_cut_off(self, tmp_path, damage):
        lines = "".join(f"{i / 997:.9f},{i * i / 999_999:.9f}\n" for i in range(200))
        (tmp_path / "x.csv.gz").write_bytes(gzip.compress(lines.encode())[damage])
        refused(tmp_path / "x.csv.gz", "damaged gzip data", "pack it again")

    @pytest.mark.parametrize(
        ("text", "rows", "notice"),
        [
            # pandas: to_csv(index=False) of an unnamed frame, of floats, whole numbers, two columns
            ("0,1,2\n0.5,1.0,0.0\n", [[0.5, 1, 0]], NAMES),
            ("0,1,2\n1,0,1\n1,1,1\n", [[1, 0, 1], [1, 1, 1]], NAMES),
            ("0,1\n0.5,1.0\n", [[0.5, 1]], NAMES),
            ("1;2\n0.5;1.0\n", [[0.5, 1]], NAMES),
            ('"1","2"\n0.5,1.0\n', [[0.5, 1]], None),
            ('"2019","2020"\n1,0\n', [[1, 0]], None),
            ("0,1\n1,0\n", [[0, 1], [1, 0]], EXAMPLE),
            ("0,1\n", [[0, 1]], None),
            ("0.0,1.0\n0.5,1.0\n", [[0, 1], [0.5, 1]], None),
            ("0,0\n0.5,1.0\n", [[0, 0], [0.5, 1]], None),
            ("0\n0.5\n", [[0], [0.5]], None),
            ('"0","1"\n"1","0"\n', [[0, 1], [1, 0]], None),
            ('\ufeff"0.5","1"\r\n"0.25","0"\r\n', [[0.5, 1], [0.25, 0]], None),
        ],
    )
    def test_csv_names_that_are_numbers(self, tmp_path, text, rows, notice):
        (tmp_path / "x.csv").write_text(text)
        data = load_dataset(tmp_path / "x.csv", validation=0)
        assert data.train.tolist() == rows
        assert read_file(tmp_path / "x.csv")[0].tolist() == rows
        assert len(data.notices) == (notice is not None)
        assert all(notice in told and str(tmp_path / "x.csv") in told for told in data.notices)

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("tissue,1100,1102\nliver,.5,.6\nheart,.7,.8\nliver,.1,.2\n", "tissue,1100,1102"),
            ("110.5,112.5,114.5,tissue\n.5,.6,7,liver\n.7,.8,8,skin\n", "110.5,112.5,114.5,tissue"),
            ("tissue;1100\nliver;.5\nheart;.7\n", "tissue,1100"),
            ("id,2018,2019\n1,7,8\n2,9,7\n", "id,2018,2019"),
            ("label,0,1\n5,0,255\n3,7,0\n", "label,0,1"),
            ("land,2018,2019\nNorway,3500,3600\nSweden,3500,3650\n", "land,2018,2019"),
            ("2018,2019,2020\n0.5,0.6,0.7\n", "2018,2019,2020"),
            ("2018,2019,2020\n3500,3600,3700\n3510,3600,3800\n", "2018,2019,2020"),
            ("city,1,2,3,4\nOslo,-4,-4,0,5\nRome,8,9,11,13\n", "city,1,2,3,4"),
            ("400,450,600\n0.1,0.2,0.3\n0.3,0.1,0.3\n", "400,450,600"),
            ("red,round\nblue,square\nred,square\n", "red,round"),  # may be an example
            ("NA\n1\n2\n", "NA"),
        ],
    )
    def test_csv_names_with_numbers_are_named_in_a_notice(self, tmp_path, text, names):
        (tmp_path / "x.csv").write_text(text)
        found = read_csv_table(tmp_path / "x.csv")
        assert (found.names, len(found)) == (tuple(names.split(",")), text.count("\n") - 1)
        assert len(found.notices) == 1
        assert NAMES in found.notices[0]

    @pytest.mark.parametrize(
        ("text", "notices"),
        [
            ("5.1,3.5,1.4,0.2,setosa\n6.4,3.2,4.5,1.5,versicolor\n6.4,2.2,4.5,1.5,virginica\n", 1),
            ("M,0.455,0.365,15\nM,0.35,0.265,7\nF,0.53,0.42,9\n", 0),
            ("39, State-gov, 77516, 13\n50, Self-emp, 83311, 13\n", 0),
            ("1,14.23,1.71,2.43\n1,13.2,1.78,2.14\n", 0),
            ("cat,1,2,3\ndog,4,5,6\nbird,7,8,10\n", 1),
            ("2,4,6\n4,5,6\n7,8,9\n", 1),
            ("10.5,20.5,90.1\n0.9,0.8,0.7\n0.5,0.4,0.1\n", 1),  # may decay
            ("World,7000,7500\nFrance,60,61\nNorway,5,6\n", 1),
        ],
    )
    def test_csv_rows_without_names_stay_rows(self, tmp_path, text, notices):
        (tmp_path / "x.csv").write_text(text)
        found = read_csv_table(tmp_path / "x.csv")
        assert (found.named, len(found)) == (False, text.count("\n"))
        assert [EXAMPLE in notice for notice in found.notices] == [True] * notices

    def test_csv_names_that_are_known_from_another_file(self, tmp_path):
        (tmp_path / "x.csv").write_text("tissue,7,5\nliver,8,6\n")
        features = (Column("tissue", "category", ("heart", "liver")), Column("7", "number"))
        known = Columns(features, target=Target("5", "regression"))
        rows = read_rows(tmp_path / "x.csv", Wanted(False, encode=True, columns=known))
        assert (rows.X.tolist(), rows.labels.tolist()) == ([[0, 1, 8]], [6])
        (tmp_path / "y.csv").write_text("1100,1102,1104\n.5,.6,.7\n")
        unnamed = Columns(tuple(Column(str(i), "number") for i in (1, 2, 3)), named=False)
        rows = read_rows(tmp_path / "y.csv", Wanted(False, columns=unnamed))
        assert len(rows.X) == 2
        assert EXAMPLE in rows.notices[0]


class TestArrays:
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4"])
    def test_npy(self, tmp_path, order, dtype):
        np.save(tmp_path / "x.npy", np.asarray(X, dtype=dtype, order=order))
        assert np.array_equal(read_file(tmp_path / "x.npy")[0], X.astype(dtype))

    def test_npy_stays_on_the_disk_where_it_can(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        train = load_own(tmp_path / "x.npy", Wanted(validation=0)).train
        assert not train.flags.owndata
        assert not train.flags.writeable
        assert np.array_equal(train, X)

    @pytest.mark.parametrize("key", ["X", "x", "data", "images", "anything"])
    @pytest.mark.parametrize("label_key", ["y", "labels", "target"])
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_npz(self, tmp_path, key, label_key, save):
        save(tmp_path / "x.npz", **{key: X, label_key: LABELS})
        examples, labels = read_file(tmp_path / "x.npz")
        assert np.array_equal(examples, X)
        assert labels.dtype == np.int64
        assert np.array_equal(labels, LABELS)

    @pytest.mark.parametrize("labels", [LABELS[:, None], LABELS.astype(float), LABELS > 1])
    def test_labels_of_other_forms_become_int64(self, tmp_path, labels):
        np.savez(tmp_path / "x.npz", X=X, y=labels)
        read = read_file(tmp_path / "x.npz")[1]
        assert read.dtype == np.int64
        assert np.array_equal(read, np.ravel(labels))

    @pytest.mark.parametrize("name", ["x-idx3-ubyte", "x.idx3-ubyte", "x.idx", "x.idx3", "noname"])
    @pytest.mark.parametrize("packed", [True, False])
    def test_idx(self, tmp_path, name, packed):
        images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(idx_bytes(images)) if packed else idx_bytes(images))
        assert np.array_equal(read_file(path)[0], images.reshape(2, 12))

    def test_idx_of_big_endian_floats(self, tmp_path):
        (tmp_path / "x.idx").write_bytes(idx_bytes(X.astype(">f4"), kind=0x0D))
        assert np.array_equal(load_own(tmp_path / "x.idx", Wanted(validation=0)).train, X)

    def test_a_file_is_split_with_its_labels(self, tmp_path):
        np.savez(tmp_path / "x.npz", X=np.repeat(X, 10, axis=0), y=np.repeat(LABELS, 10))
        data = load_dataset(tmp_path / "x.npz")
        assert (len(data.train), len(data.validation), len(data.test)) == (54, 6, 0)
        assert np.bincount(data.validation_labels).tolist() == [2, 2, 2]
        assert "60 examples" in data.source
        assert data.notices == ()
        assert np.array_equal(data.train, load_dataset(str(tmp_path / "x.npz")).train)

    def test_bytes_of_0_and_1_bring_a_notice(self, tmp_path):
        np.save(tmp_path / "x.npy", (X > 0.5).astype(np.uint8))
        assert "0 or 1" in load_dataset(tmp_path / "x.npy").notices[0]


class TestFaults:
    def test_a_name_that_is_nothing_lists_what_there_is(self):
        with pytest.raises(DataError, match=r"'mnits', .*mnist, digits, .*\.npy, \.npz, IDX"):
            load_dataset("mnits")

    @pytest.mark.parametrize("option", ["name", "unlabelled"])
    def test_no_name_is_not_the_folder_it_is_called_in(self, tmp_path, monkeypatch, option):
        """A variable of the shell that is not set gives such a name."""
        monkeypatch.chdir(tmp_path)
        np.savez("x.npz", X=np.eye(4, dtype=np.float32), y=[0, 1, 0, 1])
        pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
        for number in range(4):
            pillow.fromarray(np.full((2, 2), number, np.uint8)).save(f"{number}.png")
        assert load_dataset(".").width == 4
        with pytest.raises(DataError, match="got '', which is neither a data set nor a file"):
            load_dataset(**{"name": "x.npz", "validation": 0, option: ""})

    def test_a_missing_file_and_a_folder(self, tmp_path):
        refused(tmp_path / "no.npy", "neither a data set nor a file")
        refused(tmp_path, "got a folder")
        with pytest.raises(DataError, match="there is no such file"):
            read_file(tmp_path / "no.npy")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "x.npy")
        refused(tmp_path / "x.npy", "pipe")

    def test_a_file_without_permission(self, tmp_path, monkeypatch):
        np.save(tmp_path / "x.npy", X)
        denied = PermissionError(13, "Permission denied")  # chmod would not stop root
        monkeypatch.setattr(Path, "open", Mock(side_effect=denied))
        refused(tmp_path / "x.npy", "cannot be read", "Permission denied")

    def test_an_unknown_format(self, tmp_path):
        (tmp_path / "x.feather").write_bytes(b"FEA1....")
        refused(tmp_path / "x.feather", "unknown format", ".npy, .npz, IDX")

    @pytest.mark.parametrize("end", [".npy", ".npz", ".idx", "-ubyte", ".csv", ".gz", ".pkl"])
    def test_a_pickle_is_never_opened(self, tmp_path, end):
        raw = pickle.dumps(Bomb())
        (tmp_path / f"x{end}").write_bytes(gzip.compress(raw) if end == ".gz" else raw)
        refused(tmp_path / f"x{end}")

    def test_object_arrays_are_refused(self, tmp_path):
        objects = np.array([[Bomb()]], dtype=object)
        np.save(tmp_path / "x.npy", objects, allow_pickle=True)
        refused(tmp_path / "x.npy", "object", "pickles are never opened")
        np.savez(tmp_path / "x.npz", X=objects)
        refused(tmp_path / "x.npz", "object", "pickles are never opened")
        np.savez(tmp_path / "y.npz", X=X, y=np.array(["a"] * 6, dtype=object))
        refused(tmp_path / "y.npz", "object")

    @pytest.mark.parametrize("shape", [(10**6, 10**6), (10**12, 1), (2**62, 2**62), (-3, 4)])
    def test_a_claim_is_checked_before_it_is_believed(self, tmp_path, shape):
        header = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode() + b"\n"
        raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
        (tmp_path / "x.npy").write_bytes(raw)
        refused(tmp_path / "x.npy", "is claimed")
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("X.npy", raw)
        refused(tmp_path / "x.npz", "is claimed")

    @pytest.mark.parametrize("packed", [True, False])
    def test_a_claim_of_an_idx_file(self, tmp_path, packed):
        raw = idx_bytes(np.zeros(64, np.uint8), shape=(10**6, 1000, 1000))
        (tmp_path / "x.idx").write_bytes(gzip.compress(raw) if packed else raw)
        refused(tmp_path / "x.idx", "fewer bytes than the shape (1000000, 1000, 1000)")

    def test_an_honest_bomb_does_not_fill_the_memory(self, tmp_path, monkeypatch):
        np.savez_compressed(tmp_path / "x.npz", X=np.zeros((1000, 1000), np.float32))
        pages = {"SC_PHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}
        monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
        refused(tmp_path / "x.npz", "expected at most this machine's memory, 409,600", ".npy")

    @pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.idx", "x.idx.gz"])
    def test_a_file_cut_off_anywhere_is_refused(self, tmp_path, name):
        path = tmp_path / name
        raw = idx_bytes(np.arange(24, dtype=np.uint8).reshape(6, 4))
        if name == "x.npy":
            np.save(path, X)
        elif name == "x.npz":
            np.savez(path, X=X, y=LABELS)
        else:
            path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
        whole = path.read_bytes()
        for length in range(0, len(whole), max(len(whole) // 60, 1)):
            path.write_bytes(whole[:length])
            refused(path)

    def test_a_damaged_byte_and_bytes_after_the_end_of_an_idx_file(self, tmp_path):
        raw = idx_bytes(np.zeros((2, 2), np.uint8))
        packed = bytearray(gzip.compress(raw))
        packed[-6] ^= 1  # gzip's own sum
        (tmp_path / "x.gz").write_bytes(packed)
        refused(tmp_path / "x.gz", "damaged gzip")
        (tmp_path / "x.idx").write_bytes(raw + b"!")
        refused(tmp_path / "x.idx", "bytes after")

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"a": X, "b": X}, "a, b"),
            ({"y": LABELS}, "y, expected the examples under one of X"),
            ({"X": X, "y": LABELS[:3]}, "labels of shape (3,) for 6 examples"),
            ({"X": X, "y": LABELS + 0.5}, "not whole numbers"),
            ({"X": X, "y": np.array([-1, 1, 1, -1, 1, 1])}, "-1 stands for no label"),
            ({"X": np.array(list("abc"))}, "expected numbers"),
            ({"X": LABELS / 2}, "expected (n_examples, width)"),
            ({"data": X[0], "indices": X[0], "indptr": X[0], "format": X[0]}, "sparse"),
        ],
    )
    def test_archives_that_do_not_fit(self, tmp_path, arrays, words):
        np.savez(tmp_path / "x.npz", **arrays)
        refused(tmp_path / "x.npz", words)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no values"),
            ("a,b\n", "no values"),
            ("a,b\n0,1\n0,x\n", "got 'x' in line 3, field 2"),
            ("0,1\n0,1,1\n", "got width 3 in line 2 after lines of width 2"),
            ("0,1\n0,1e300\n", "got inf at row 1, column 1"),
            ("0,255\n", "got 255 at row 0, column 1"),
            ("0,5;1\n", f"column '1' {COMMAS} '0,5'"),
            ('a,b\n"1,200.5",0\n"2,300.5",1\n', f"column 'a' {COMMAS} '1,2"),
            ("a;b\n1.200,5;0\n2.300,5;1\n", f"column 'a' {COMMAS} '1.2"),
            ("a;b\n1,200,300;0\n2,300,400;1\n", f"column 'a' {COMMAS} '1,"),
        ],
    )
    def test_csv_files_that_do_not_fit(self, tmp_path, text, words):
        (tmp_path / "x.csv").write_text(text)
        refused(tmp_path / "x.csv", words)

    def test_empty_and_flat_arrays_on_disk(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((0, 4)))
        refused(tmp_path / "x.npy", "no values")
        np.save(tmp_path / "x.npy", np.zeros((0, 4, 4)))
        refused(tmp_path / "x.npy", "no values")
        np.save(tmp_path / "x.npy", np.float32(1))
        refused(tmp_path / "x.npy", "shape ()")
        (tmp_path / "labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(5, np.uint8)))
        refused(tmp_path / "labels-idx1-ubyte", "shape (5,)")

    def test_one_example_can_be_read_but_not_split(self, tmp_path):
        np.save(tmp_path / "x.npy", X[:1])
        assert len(load_dataset(tmp_path / "x.npy").train) == 1
        with pytest.raises(DataError, match="which holds out all of 1 examples"):
            load_dataset(tmp_path / "x.npy", validation=0.5)

    @pytest.mark.parametrize("mapped", [False, True])
    @pytest.mark.parametrize(
        ("shape", "noticed"), [((6, 5, 4, 3), True), ((6, 3, 5, 4), False), ((6, 3, 3, 3), False)]
    )
    def test_a_notice_about_colours_that_lie_last(self, tmp_path, shape, noticed, mapped):
        np.save(tmp_path / "x.npy", np.random.default_rng(0).random(shape))
        notices = load_dataset(tmp_path / "x.npy", mapped=mapped).notices
        found = [notice.endswith("save X.transpose(0, 3, 1, 2)") for notice in notices]
        assert found == [True][:noticed]
