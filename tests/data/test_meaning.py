"""The same numbers mean the same thing, whatever their type and wherever they come from."""

from signal import SIGINT, raise_signal

import numpy as np
import pytest
from commandline import exit_status

from syncpretrain import Minibatches, Stack, finetune, load, pretrain
from syncpretrain.data import load_dataset
from syncpretrain.data.meaning import Meaning
from syncpretrain.errors import DataError, NovelValueWarning, RunInterrupted, SettingsError
from syncpretrain.events import EpochFinished
from syncpretrain.models.scores import scores
from syncpretrain.plot import reconstructions
from syncpretrain.sklearn import DBNClassifier, StackedRBM

TYPES = ["u1", "i2", "u2", "i4", "i8", "f2", "f4", "f8", ">i4", ">f8"]
DRAWS = np.random.default_rng(0)
BYTES = DRAWS.integers(0, 256, size=(60, 6)).astype("u1")
BYTES[0] = 0, 1, 0, 0, 1, 0  # alone, it could be bits
BITS = DRAWS.integers(0, 2, size=(60, 6)).astype("u1")
SHARES = DRAWS.random((60, 6))
SECONDS = 1.7e9 + DRAWS.integers(0, 100, size=(200, 1))
TIMES = np.hstack([SECONDS, DRAWS.normal(size=(200, 2))])
SHORT = {"epochs": 2, "batch_size": 20, "warn": False}
STREAM = {"layers": [6, 4], "handoff": "minibatch", **SHORT}


def trained_on(X, **settings):
    return pretrain(X, hidden=[4], **{**SHORT, **settings})


def same(stack, X, like):
    np.testing.assert_array_equal(stack.encode(X), stack.encode(like))


class TestRowsOfAnyType:
    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize(
        ("own", "units", "meaning"),
        [
            (BYTES.astype("f4"), None, "numbers"),
            (BYTES, "bernoulli", "bytes"),
            (BYTES, "gaussian", "bytes"),
            (BYTES, "gaussian:4,gaussian:2", "bytes"),
            *((BITS.astype(kind), None, "bits") for kind in ("u1", "f8", "?")),
        ],
    )
    def test_of_a_stack(self, own, units, meaning, dtype):
        stack = trained_on(own, visible_units=units)
        assert stack.meaning == Meaning(meaning)
        same(stack, own.astype(dtype), own)

    def test_one_row_means_what_it_means_among_others(self):
        stack = trained_on(BYTES)
        alone = [stack.encode(row[None].astype("i8"))[0] for row in BYTES]
        np.testing.assert_allclose(alone, stack.encode(BYTES), rtol=1e-5)

    def test_bytes_that_were_divided_are_not_divided_again(self):
        same(trained_on(BYTES), BYTES[1:] / np.float32(255), BYTES[1:])

    def test_of_a_list_and_of_a_frame(self, pandas):
        stack = trained_on(BYTES)
        same(stack, BYTES.astype(int).tolist(), BYTES)
        same(stack, pandas.DataFrame(BYTES), BYTES)

    @pytest.mark.parametrize("kind", ["UInt8", "Int64", "Float64", "uint8", "float32"])
    def test_of_a_stack_trained_on_a_frame(self, pandas, kind):
        frame = pandas.DataFrame(BYTES, columns=list("abcdef"))
        stack = trained_on(frame)
        same(stack, frame.astype(kind), frame)
        same(stack, BYTES, frame)

    def test_of_a_sparse_matrix(self, sparse):
        stack = trained_on(BYTES)
        codes = stack.encode(sparse.csr_array(BYTES.astype("f4")))  # by sums in another order
        np.testing.assert_allclose(codes, stack.encode(BYTES), rtol=1e-6)
        stack = trained_on(sparse.csr_array(BITS))
        same(stack, BITS, BITS.astype("f4"))


class TestWhatCannotBeTold:
    @pytest.mark.parametrize(
        ("own", "X", "message"),
        [
            (BYTES, BYTES[:1].astype("f8"), "floats of 0 and 1 alone.*means 1/255"),
            (SHARES, BITS, "bytes of 0 and 1 alone.*1 is the largest"),
            (BITS.astype("f4"), BITS * np.uint8(255), "got the byte 255, expected 0 or 1"),
            (BYTES, 2 * BYTES.astype("i4"), "got numbers from 0 to 510, expected 0 to 255"),
        ],
    )
    def test_it_is_refused(self, own, X, message):
        with pytest.raises(DataError, match=message):
            trained_on(own).encode(X)

    @pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
    def test_fractions_beyond_1_are_no_bytes(self, units):
        """They were divided before, and noise was added; the first row is white."""
        stack = trained_on(BYTES, visible_units=units)
        noisy = BYTES / 255 * 1.02
        if units == "bernoulli":
            with pytest.raises(DataError, match=r"expected values in \[0, 1\]"):
                stack.encode(noisy)
        else:
            assert np.abs(stack.encode(noisy) - stack.encode(BYTES)).max() < 0.05
            alone = stack.encode(noisy[3:4])
            np.testing.assert_allclose(alone, stack.encode(noisy)[3:4], rtol=1e-5)
        with pytest.raises(DataError, match=r"fractions from .*, which are neither bytes nor"):
            stack.encode(BYTES + 0.5)

    @pytest.mark.parametrize("dtype", ["u1", "f4"])
    def test_zeros_alone_are_told(self, dtype):
        zeros = np.zeros((2, 6), dtype=dtype)
        same(trained_on(BYTES), zeros, zeros.astype("u1"))
        same(trained_on(SHARES), zeros, zeros.astype("f4"))


class TestEveryDoor:
    def test_bytes_are_divided_for_a_stack_of_shares(self):
        same(trained_on(SHARES), BYTES, BYTES / np.float32(255))

    def test_examples_to_validate_with(self):
        floats = BYTES.astype("f4")
        stacks = [trained_on(floats, validation=X) for X in (floats, BYTES)]
        one, other = (stack.history.layers[0].validation for stack in stacks)
        assert one == other

    @pytest.mark.parametrize("dtype", ["u1", "f8", "i8"])
    def test_fine_tuning(self, dtype):
        stack, y = trained_on(BYTES.astype("f4")), BYTES[:, 0] > 127
        arrays, own = (BYTES.astype("f4"), BYTES.astype(dtype)), {"epochs": 2, "warn": False}
        tuned = [finetune(stack, X, y, validation=X, validation_y=y, **own) for X in arrays]
        assert tuned[0].parameters_sha256 == tuned[1].parameters_sha256
        shares = tuned[1].predict_proba(BYTES.astype("f8"))
        np.testing.assert_array_equal(tuned[0].predict_proba(BYTES), shares)

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_a_file_that_may_stay_where_it_is(self, tmp_path, order):
        np.save(tmp_path / "x.npy", np.asarray(BYTES.astype("f4"), order=order))
        how = {"bounded": False, "validation": 0, "meaning": Meaning("bytes")}
        data = load_dataset(tmp_path / "x.npy", mapped=True, **how)
        np.testing.assert_array_equal(data.train, BYTES.astype("f4") / np.float32(255))

    def test_scores_reconstructions_imputation_and_samples(self):
        stack, floats = trained_on(BYTES), BYTES.astype("f8")
        np.testing.assert_array_equal(scores(stack, floats), scores(stack, BYTES))
        np.testing.assert_array_equal(stack.reconstruct(floats), stack.reconstruct(BYTES))
        lost = floats.copy()
        lost[:, 2] = np.nan
        filled = stack.impute(lost)
        assert np.nanmax(np.abs(filled - lost)) == 0
        assert filled[:, 2].mean() > 20  # a byte, no share
        starts = [stack.sample(60, steps=1, start=X) for X in (floats, BYTES)]
        np.testing.assert_array_equal(*starts)

    def test_pictures(self):
        pytest.importorskip("matplotlib")
        X = BYTES.repeat(2, axis=1)[:, :9]
        stack = trained_on(X)
        drawn = [reconstructions(stack, rows, shape="3x3") for rows in (X, X.astype("i8"))]
        np.testing.assert_array_equal(*(axes.get_images()[0].get_array() for axes in drawn))

    def test_a_stream_whose_later_arrays_have_another_type(self):
        def one_pass(number):
            yield BYTES[:30]
            yield BYTES[30:].astype("f4")

        mixed = pretrain(Minibatches(one_pass), **STREAM)
        assert mixed.meaning == Meaning("bytes")
        assert mixed.parameters_sha256 == pretrain(Minibatches([BYTES]), **STREAM).parameters_sha256

    @pytest.mark.parametrize(("dtype", "meaning"), [("u1", "bytes"), ("f4", "numbers")])
    def test_a_mapped_file_that_is_streamed(self, tmp_path, dtype, meaning):
        np.save(tmp_path / "x.npy", BYTES.astype(dtype))
        X = np.load(tmp_path / "x.npy", mmap_mode="r")
        stack = pretrain(X, visible_units="gaussian", **STREAM)
        assert stack.meaning == Meaning(meaning)
        same(stack, BYTES, BYTES.astype("f4"))

    @pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
    def test_an_estimator_of_a_stack_trained_on_bytes(self, dtype):
        y = BYTES[:, 0] > 127
        made = DBNClassifier(pretrained=trained_on(BYTES), finetune_epochs=5, random_state=0)
        made.fit(BYTES.astype(dtype), y)
        own = made.stack_.predict_proba(BYTES)
        np.testing.assert_allclose(made.predict_proba(BYTES.astype(dtype)), own, atol=1e-5)
        np.testing.assert_allclose(made.predict_proba(BYTES[1:] / 255), own[1:], atol=1e-5)
        for wrong in (BYTES * 100.0, BYTES + 0.5):
            with pytest.raises(DataError, match=r"expected 0 to 255|neither bytes"):
                made.predict(wrong)

    def test_a_stack_of_an_interrupted_call(self):
        def stop(event):
            if isinstance(event, EpochFinished):
                raise_signal(SIGINT)

        with pytest.raises(RunInterrupted) as stopped:
            trained_on(BYTES, observers=[stop], runtime="serial")
        assert stopped.value.stack.meaning == Meaning("bytes")

    def test_a_stack_that_keeps_no_meaning_divides_bytes_alone(self):
        old = trained_on(BYTES)
        old = Stack(old.layers, {}, old.scaling)
        same(old, BYTES, BYTES / np.float32(255))


def run_of(file, out, *options):
    own = ("--data", file, "--epochs", 1, "--out", out, "--quiet")
    assert not exit_status("train", *own, *options)
    return out


def run_on(folder, X, *options):
    np.save(folder / "own.npy", X)
    return run_of(folder / "own.npy", folder / "run", "--layers", "6,4", *options)


def codes_of(run, file):
    out = run.parent / "codes.npy"
    out.unlink(missing_ok=True)
    assert not exit_status("encode", run, "--data", file, "--out", out)
    return np.load(out)


class TestCommandLine:
    @pytest.mark.parametrize(
        ("own", "others", "units"),
        [
            ("u1", ["f8", "i2"], "bernoulli"),
            ("u1", ["f8", "i2"], "gaussian"),
            ("f4", ["u1", "i8"], "gaussian"),
        ],
    )
    def test_files_of_other_types(self, tmp_path, own, others, units):
        run = run_on(tmp_path, BYTES.astype(own), "--visible-units", units)
        found = [self.codes(run, tmp_path, BYTES.astype(own))]
        found += [self.codes(run, tmp_path, BYTES.astype(dtype)) for dtype in others]
        found.append(load(run).encode(BYTES.astype(others[0])))
        for codes in found[1:]:
            np.testing.assert_array_equal(codes, found[0])

    def codes(self, run, folder, X):
        np.save(folder / "new.npy", X)
        return codes_of(run, folder / "new.npy")

    def test_masks_of_0_and_1_beside_bytes_are_said_to_be_dark(self, tmp_path, capsys):
        self.codes(run_on(tmp_path, BYTES), tmp_path, BITS)
        assert "its bytes are all 0 or 1, and were divided by 255" in capsys.readouterr().err

    def test_a_table_of_the_same_numbers(self, tmp_path):
        np.savetxt(tmp_path / "own.csv", BYTES, fmt="%d", delimiter=",")
        run = run_on(tmp_path, BYTES)
        codes = codes_of(run, tmp_path / "own.csv")
        np.testing.assert_array_equal(codes, self.codes(run, tmp_path, BYTES))

    def test_pictures_of_black_and_white_as_bytes(self, tmp_path):
        """Divided by 255 they are 0 and 1, and are not divided again."""
        tuning = ("--finetune", "reconstruction", "--finetune-epochs", 1)
        run = run_on(tmp_path, BITS * np.uint8(255), *tuning)
        assert not exit_status("evaluate", run)
        codes = self.codes(run, tmp_path, BITS * np.uint8(255))
        np.testing.assert_array_equal(codes, load(run).encode(BITS * np.uint8(255)))

    def test_unlabelled_examples_and_a_part_to_test_with(self, tmp_path):
        found = []
        for dtype in ("f4", "u1"):
            np.savez(tmp_path / "own.npz", X=BYTES[:20].astype("f4"), y=np.arange(20) % 2)
            np.save(tmp_path / "more.npy", BYTES[20:50].astype(dtype))
            np.save(tmp_path / "test.npy", BYTES[50:].astype(dtype))
            parts = ("--unlabelled", tmp_path / "more.npy", "--test", tmp_path / "test.npy")
            how = ("--layers", "6,4", "--visible-units", "gaussian")
            run = run_of(tmp_path / "own.npz", tmp_path / dtype, *parts, *how)
            found.append(load(run).parameters_sha256)
        assert found[0] == found[1]

    def test_fine_tuning_of_a_run(self, tmp_path):
        y = (BYTES[:, 0] > 127).astype(int)
        run = run_on(tmp_path, BYTES.astype("f4"), "--visible-units", "gaussian")
        found = []
        for dtype in ("f4", "u1"):
            np.savez(tmp_path / "own.npz", X=BYTES.astype(dtype), y=y)
            assert not exit_status(
                *("finetune", run, "--data", tmp_path / "own.npz"),
                *("--finetune-epochs", 2, "--out", tmp_path / dtype, "--quiet"),
            )
            found.append(load(tmp_path / dtype))
        assert found[0].parameters_sha256 == found[1].parameters_sha256
        assert found[1].meaning == Meaning("numbers")


class TestColumnsWithALargeOffset:
    """Seconds since 1970 within 100 s: float32 knows only every 128th of them."""

    @pytest.fixture
    def stack(self):
        return pretrain(TIMES, hidden=[8], epochs=5, warn=False)

    def test_its_differences_are_kept(self, stack):
        seen = stack.prepared(TIMES)
        expected = (TIMES - TIMES.mean(axis=0)) / TIMES.std(axis=0)
        np.testing.assert_allclose(seen, expected, atol=2e-5)

    def test_the_result_is_that_of_the_centred_column(self, stack):
        centred = pretrain(TIMES - TIMES.mean(axis=0), hidden=[8], epochs=5, warn=False)
        codes = centred.encode(TIMES - TIMES.mean(axis=0))
        np.testing.assert_allclose(stack.encode(TIMES), codes, atol=1e-3)

    def test_in_arrays_frames_and_lists(self, stack, pandas):
        for make in (np.asarray, pandas.DataFrame, lambda X: X.tolist()):
            np.testing.assert_array_equal(stack.encode(make(TIMES)), stack.encode(TIMES))
            np.testing.assert_allclose(stack.encode(make(TIMES[:1])), stack.encode(TIMES)[:1], 1e-5)

    def test_decoding_gives_it_back(self, stack):
        made = stack.decode(stack.encode(TIMES))
        assert made.dtype == np.float64
        assert np.abs(made[:, 0] - TIMES[:, 0]).max() < 200
        assert len(np.unique(made[:, 0])) > 50

    def test_whole_numbers_and_a_frame(self, pandas):
        X = np.hstack([SECONDS, 2 * SECONDS]).astype("i8")
        assert np.ptp(trained_on(X).prepared(X), axis=0).min() > 2
        frame = pandas.DataFrame(TIMES, columns=["time", "a", "b"])
        assert len(np.unique(trained_on(frame).prepared(frame)[:, 0])) > 50

    def test_other_columns_keep_their_bits(self):
        X = TIMES[:, 1:]
        found, expected = trained_on(X), trained_on(X.astype("f4"))
        assert found.parameters_sha256 == expected.parameters_sha256

    def test_estimators(self):
        y = TIMES[:, 0] > np.median(TIMES[:, 0])
        assert DBNClassifier(random_state=0).fit(TIMES, y).score(TIMES, y) > 0.97
        made = StackedRBM(hidden=4, epochs=2, random_state=0).fit(TIMES)
        assert len(np.unique(made.inverse_transform(made.transform(TIMES))[:, 0])) > 50

    def test_parts_of_one_row_and_of_many(self):
        made = StackedRBM(hidden=4, random_state=0)
        for part in (TIMES[:100], TIMES[100:101], TIMES[101:]):
            made.partial_fit(part)
        assert len(np.unique(made.stack_.prepared(TIMES)[:, 0])) > 50
        again = StackedRBM(hidden=4, epochs=2, random_state=0).fit(TIMES).partial_fit(TIMES[:1])
        assert len(np.unique(again.stack_.prepared(TIMES)[:, 0])) > 50

    def test_files(self, tmp_path):
        np.save(tmp_path / "x.npy", TIMES)
        np.savetxt(tmp_path / "x.csv", TIMES, delimiter=",", fmt="%.6f")
        found = []
        for name in ("x.npy", "x.csv"):
            how = ("--hidden", 4, "--visible-units", "auto")
            run = run_of(tmp_path / name, tmp_path / name[2:], *how)
            found.append(codes_of(run, tmp_path / name))
            assert len(np.unique(found[-1].round(4), axis=0)) > 100
            np.testing.assert_allclose(load(run).encode(TIMES), found[-1], atol=1e-6)
        np.testing.assert_allclose(found[0], found[1], atol=1e-4)

    @pytest.mark.parametrize("value", [0.1, 0.3, 5.1, 101.3, 1e-3])
    def test_a_column_that_never_varies_has_no_offset_of_rounding(self, value):
        X = np.hstack([np.full((400, 1), value), DRAWS.normal(size=(400, 2))])
        stack = trained_on(X)
        assert not stack.meaning.origin
        np.testing.assert_array_equal(scores(stack, X), scores(stack, X.astype("f4")))
        X[:, 0] += DRAWS.choice([0, 1e-16, -1e-16], 400) * value
        assert not trained_on(X).meaning.origin

    def test_a_stack_that_subtracts_one_refuses_sparse_rows(self):
        sparse = pytest.importorskip("scipy.sparse", reason="sparse rows")
        X = np.hstack([1.7e9 + 60 * DRAWS.random((200, 1)), DRAWS.normal(size=(200, 2))])
        with pytest.raises(DataError, match=r"^X: got sparse rows, expected a dense array"):
            trained_on(X).encode(sparse.csr_array(X))

    @pytest.mark.parametrize("value", [20240101, 1_700_000_000])
    def test_another_whole_number_of_many_digits_is_seen(self, value):
        X = np.hstack([np.full((200, 1), value), DRAWS.normal(size=(200, 2))])
        stack = trained_on(X)
        other = X + np.array([1, 0, 0])
        with pytest.warns(NovelValueWarning, match="200 of 200 rows have new values"):
            stack.encode(other)
        with pytest.warns(NovelValueWarning):
            found = scores(stack, other)
        assert (found > scores(stack, X) + 50).all()
        assert stack.reconstruct(X)[0, 0] == value
        assert stack.to_sklearn() is not None

    def test_differences_between_0_and_1_are_kept(self):
        X = 0.5 + 1e-8 * DRAWS.normal(size=(200, 3))
        seen = trained_on(X, visible_units="gaussian").prepared(X)
        np.testing.assert_allclose(seen, (X - X.mean(0)) / X.std(0), atol=2e-5)
        purities = 1 - 1e-9 * np.abs(DRAWS.normal(size=(200, 3)))
        assert np.ptp(trained_on(purities, visible_units="gaussian").prepared(purities)) > 2

    def test_a_stream_refuses_it(self, tmp_path):
        np.save(tmp_path / "x.npy", TIMES)
        X = np.load(tmp_path / "x.npy", mmap_mode="r")
        how = {"layers": [3, 4], "handoff": "minibatch", "visible_units": "gaussian", **SHORT}
        for rows in (X, Minibatches([TIMES])):
            with pytest.raises(DataError, match=r"around 17000000\d\d\.\d+ in column 0.*float32"):
                pretrain(rows, **how)
        with pytest.raises(DataError, match=r"array 2 .*in column 0.*float32"):
            pretrain(Minibatches([TIMES[:1], TIMES[1:]]), **how)

    def test_an_export_refuses_it(self, stack):
        with pytest.raises(SettingsError, match="rows of an export are float32"):
            stack.to_sklearn()
