"""Commands on tables: train, finetune, predict, score, and compare on own data."""

import csv
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from commandline import exit_status, measure_one_round
from sparsematrices import csr
from trialruns import Abort

import syncpretrain
from syncpretrain.data import load_dataset
from syncpretrain.models.scores import scores
from syncpretrain.runs.checkpoints import Checkpoints
from syncpretrain.runs.run import resume_run

pytestmark = pytest.mark.usefixtures("measures_anew", "fonts")

N = 90
TRAIN = ("train", "--epochs", 1, "--batch-size", 10, "--quiet")
TUNE = ("--finetune-epochs", 5, "--finetune-batch-size", 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of 90 rows in three classes, and runs on them: pre, tuned."""
    folder = tmp_path_factory.mktemp("tables")
    draws = np.random.default_rng(0)
    labels = np.arange(N) % 3
    X = np.clip(draws.normal(labels[:, None] / 3, 0.1, (N, 4)), 0, 1)
    rows = [",".join([*(f"{x:.4f}" for x in row), "uvw"[i % 3]]) for i, row in enumerate(X)]
    (folder / "t.csv").write_text("\n".join(["a,b,c,d,kind", *rows]) + "\n")
    new = [",".join(reversed(row.split(",")[:4])) for row in rows[:7]]
    (folder / "new.csv").write_text("\n".join(["d,c,b,a", *new]) + "\n")
    data = ("--data", folder / "t.csv")
    own = ("--drop", "kind", "--hidden", "6,3", "--out", folder / "pre")
    assert exit_status(*TRAIN, *data, *own) == 0
    tuning = ("--target", "kind", "--layers", "4,6", "--finetune", "classification", *TUNE)
    assert exit_status(*TRAIN, *data, *tuning, "--test", 0.2, "--out", folder / "tuned") == 0
    return folder


@pytest.fixture
def call(call, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return call


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.reader(file))


class TestTrain:
    def test_the_run_keeps_what_it_needs_to_be_repeated(self, folder):
        config = msgspec.toml.decode((folder / "tuned" / "config.toml").read_text())
        assert config["data"] == {"name": str(folder / "t.csv"), "target": "kind", "test": "0.2"}
        columns = json.loads((folder / "tuned" / "columns.json").read_text())
        assert [column["name"] for column in columns["features"]] == list("abcd")
        assert columns["target"]["classes"] == ["u", "v", "w"]
        assert syncpretrain.load(folder / "tuned").info["columns"] == columns
        assert syncpretrain.load(folder / "pre").widths == (4, 6, 3)

    def test_what_needs_binary_units_is_checked_with_the_units_by_column(self, call, refusal):
        Path("b.csv").write_text("a,k\n" + "".join(f"{i % 2},{i % 3 % 2}\n" for i in range(40)))
        auto = ("--hidden", 3, "--visible-units", "auto")
        own = ("--model", "autoencoder", "--loss", "cross-entropy")
        call(*TRAIN, "--data", "b.csv", *auto, *own, "--out", "binary")
        assert syncpretrain.load("binary").units[0] == "bernoulli"
        Path("w.csv").write_text("a\n" + "".join(f"{i % 7 - 3}\n" for i in range(40)))
        line = refusal(*TRAIN, "--data", "w.csv", *auto, *own, "--out", "no")
        assert "with gaussian visible units" in line
        stops = ("--early-stopping", "pseudo-likelihood", "--validation", 0.2)
        call(*TRAIN, "--data", "b.csv", *auto, *stops, "--out", "stops")
        assert syncpretrain.load("stops").units[0] == "bernoulli"

    def test_units_of_the_settings_that_were_kept_may_be_given(self, call, refusal):
        Path("k.csv").write_text("a,k\n" + "".join(f"{i % 7},{'uv'[i % 2]}\n" for i in range(40)))
        own = ("--data", "k.csv", "--hidden", 3, "--visible-units")
        call(*TRAIN, *own, "auto", "--out", "one")
        kept = msgspec.toml.decode(Path("one/config.toml").read_text())["pretrain"]["visible_units"]
        assert kept == "gaussian:1,softmax:1x2"
        call(*TRAIN, *own, kept, "--out", "two")
        runs = [syncpretrain.load(run).parameters_sha256 for run in ("one", "two")]
        assert runs[0] == runs[1]
        line = refusal(*TRAIN, *own, "gaussian:2,softmax:1x2", "--out", "no")
        assert "whose blocks have 4 columns, expected 3" in line

    @pytest.mark.parametrize("first", ["", "u"])
    def test_a_schedule_is_found_for_blocks_and_missing_values(self, call, monkeypatch, first):
        measure_one_round(monkeypatch)
        rows = "".join(f"{i % 7},{'uv'[i % 2]}\n" for i in range(40))
        Path("k.csv").write_text(f"a,k\n3,{first}\n{rows}")
        own = ("--data", "k.csv", "--hidden", "8,4", "--visible-units", "auto", "--out", "one")
        call(*TRAIN, *own, "--schedule", "auto")
        assert syncpretrain.load("one").units[0] == "gaussian:1,softmax:1x2"

    def test_guessing_classes_where_every_row_has_one_is_said_to_have_no_effect(self, call):
        rows = [f"{i / 30},{i % 2}" for i in range(30)]
        Path("m.csv").write_text("\n".join(["a,y", *rows]))
        own = ("--data", "m.csv", "--target", "y", "--hidden", 3, "--epochs", 1, *TUNE)
        guess = ("--finetune-unlabelled", "pseudo")
        told = "".join(call("train", *own, "--finetune", "classification", *guess, "--out", "m"))
        assert "unlabelled pseudo has no effect: every row has a label" in told

    def test_rows_without_a_label_are_counted_by_every_command(self, call):
        X = np.random.default_rng(0).random((30, 3)).round(3)
        rows = [",".join(map(str, [*x, i % 3 - 1])) for i, x in enumerate(X)]
        Path("m.csv").write_text("\n".join(["a,b,c,y", *rows]))
        own = ("--data", "m.csv", "--target", "y", "--hidden", 3, "--epochs", 1, *TUNE)
        count, doubt = "column 'y': 10 of 30 rows have no label", "since the label -1 stands for"
        for command in (
            ("train", *own, "--finetune", "classification", "--out", "m"),
            ("compare", *own, "--test", 0.2, "--starts", "random", "--seeds", 1, "--out", "c"),
            ("finetune", "m", "--out", "again", *TUNE),
            ("evaluate", "m"),
        ):
            text = "".join(call(*command))
            assert count in text
            assert doubt in text
        Path("m2.csv").write_text("\n".join(["a,b,c,y", *rows[:3]]))
        told = call("evaluate", "m", "--data", "m2.csv")[1]
        assert "column 'y': 1 of 3 rows have no label" in told

    def test_a_regression(self, call):
        own = ("--data", "t.csv", "--target", "d", "--drop", "kind", "--hidden", 3, "--test", 0.2)
        tuned = ("--finetune", "regression", *TUNE)
        report = json.loads(call(*TRAIN[:-1], *own, *tuned, "--out", "reg", "--json")[0])
        assert report["accuracy"] is None
        assert set(report["regression_error"]["test"]) == {"rmse", "r2"}
        assert "regression, root mean squared error: train" in call("evaluate", "reg")[0]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("", "--target: got none for t.csv, whose last column, 'kind', holds text such as 'u'"),
            ("--target ki", "--target: got 'ki', which is no column of t.csv; did you mean 'kind'"),
            ("--target kind --drop x", "--drop: got 'x', which is no column of t.csv"),
            ("--target kind --test 2", "--test: got 2, expected a fraction above 0 and below 1"),
            ("--target kind --test no.csv", "--test: got 'no.csv', which is neither a data set"),
            ("--target kind --examples 999", "--examples: got 999, expected 1 to 81"),
            ("--target kind --task regression", "--task: got regression, but column 'kind'"),
            (
                "--target kind --task regression --finetune classification",
                "--task: got regression with fine-tuning for classification; leave it out, or take"
                " --finetune regression",
            ),
            ("--drop kind --hidden 3", "--hidden: got it beside --layers"),
            ("--drop kind --unlabelled new.csv", "--unlabelled: got new.csv, but t.csv has no lab"),
        ],
    )
    def test_refusals(self, refusal, options, message):
        given = (*TRAIN, "--data", "t.csv", "--layers", "4,3", "--out", "no", *options.split())
        assert refusal(*given).startswith(f"Error: {message}")

    def test_the_option_is_named_where_a_refusal_begins_with_the_file(self, refusal):
        Path("empty.csv").write_text("a,b,c\n1,,0\n2,,1\n")
        given = (*TRAIN, "--data", "empty.csv", "--hidden", 3, "--out", "no")
        words = "Error: empty.csv: column 'b' has no value in any row; leave it out with --drop b"
        assert refusal(*given) == words

    def test_settings_in_messages_are_options(self, call, refusal):
        Path("indexed.csv").write_text(",a,b\n" + "0,.1,0\n1,.2,1\n" * 20)
        own = ("--data", "indexed.csv", "--hidden", 3, "--visible-units", "gaussian")
        _, err = call(*TRAIN[:-1], *own, "--out", "indexed")
        assert "leave it out if it counts the rows, with --drop 1\n" in err
        _, err = call("evaluate", "indexed", "--data", "indexed.csv")
        assert "leave it out if it counts the rows, with --drop 1\n" in err
        Path("texts.csv").write_text("a,b\nx,.1\ny,.2\n")
        err = refusal(*TRAIN, "--data", "texts.csv", "--hidden", 3, "--out", "no")
        assert "; take auto, which makes a category of it, or leave it out with --drop a" in err

    @pytest.mark.parametrize("hidden", ["conv:4x3,5", "1x2x2,5", "-3", "5,", "0", "4,0"])
    def test_hidden_units_are_those_of_dense_layers(self, refusal, folder, hidden):
        given = (*TRAIN, "--data", "t.csv", f"--hidden={hidden}", "--out", "no")
        message = f"Error: --hidden: got {hidden!r}, expected the units of each dense layer"
        assert refusal(*given).startswith(message)


class TestFinetuneOnText:
    @pytest.fixture
    def call(self, call):
        rows = [[f"{x:.3f}" for x in row] for row in np.random.default_rng(0).random((60, 4))]
        lines = [",".join([*row, "red", "uv"[i % 2]]) for i, row in enumerate(rows)]
        Path("text.csv").write_text("\n".join(["a,b,c,d,colour,kind", *lines]))
        Path("x.csv").write_text("\n".join(["a,b,c,d", *map(",".join, rows)]))
        np.save("x.npy", np.array(rows, dtype=np.float32))
        for data in ("x.csv", "x.npy"):
            call(*TRAIN, "--data", data, "--hidden", 3, "--out", data[2:])
        return call

    TUNED = ("--data", "text.csv", "--out", "again", "--quiet")

    def test_it_tells_how_to_leave_a_column_out(self, refusal):
        err = refusal("finetune", "npy", *self.TUNED)
        assert err.startswith("Error: text.csv: column 'colour' holds text such as 'red', expected")
        assert "as the run was trained on; leave it out with --drop colour, or write numbers" in err
        err = refusal("finetune", "npy", *self.TUNED, "--drop", "colour")
        assert err.endswith("give --target kind if it is the class, or --drop kind to leave it out")
        err = refusal("finetune", "csv", *self.TUNED)
        assert "leave it out with --drop colour, or give --target colour to predict it" in err

    @pytest.mark.parametrize("run", ["npy", "csv"])
    def test_the_target_need_not_have_been_in_the_earlier_table(self, call, run):
        call("finetune", run, *self.TUNED, "--drop", "colour", "--target", "kind", *TUNE)
        assert syncpretrain.load("again").info["columns"]["target"]["name"] == "kind"

    @pytest.mark.parametrize("command", ["encode", "score"])
    def test_a_command_without_that_option_names_none(self, refusal, command):
        for run in ("npy", "csv"):
            err = refusal(command, run, "--data", "text.csv", "--out", "z.npy")
            assert "leave it out" in err and "drop" not in err and "target" not in err
        err = refusal(command, "npy", "--data", "", "--out", "z.npy")
        assert err.startswith("Error: --data: got '', which is neither a data set nor a file")


class TestPredict:
    def test_classes_by_their_own_names(self, call):
        out, _ = call("predict", "tuned", "--data", "t.csv", "--out", "y.csv")
        assert out == f"y.csv: {N} predictions of kind, of t.csv\n"
        rows = table("y.csv")
        assert rows[0] == ["kind"]
        X = np.genfromtxt("t.csv", delimiter=",", skip_header=1)[:, :4].astype(np.float32)
        assert [row[0] for row in rows[1:]] == syncpretrain.load("tuned").predict(X).tolist()

    def test_columns_by_their_names_and_no_target(self, call):
        call("predict", "tuned", "--data", "t.csv", "--out", "all.csv")
        call("predict", "tuned", "--data", "new.csv", "--out", "y.csv")
        assert table("y.csv") == table("all.csv")[:8]

    def test_probabilities(self, call):
        call("predict", "tuned", "--data", "t.csv", "--proba", "--out", "y.csv")
        rows = table("y.csv")
        assert rows[0] == ["kind", "p(u)", "p(v)", "p(w)"]
        shares = np.array([row[1:] for row in rows[1:]], dtype=np.float32)
        np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
        assert [row[0] for row in rows[1:]] == ["uvw"[i] for i in shares.argmax(axis=1)]

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
    def test_formats(self, call, suffix):
        if suffix == ".parquet":
            parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
        name = f"y{suffix}"
        call("predict", "tuned", "--data", "t.csv", "--proba", "--out", name)
        call("predict", "tuned", "--data", "t.csv", "--out", "y.csv")
        expected = [row[0] for row in table("y.csv")[1:]]
        if suffix == ".npz":
            with np.load(name) as found:
                assert found["y"].tolist() == expected
                assert found["proba"].shape == (N, 3)
        elif suffix == ".npy":
            assert np.load(name).shape == (N, 3)
        else:
            assert parquet.read_table(name)["kind"].to_pylist() == expected

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("pre", "--out", "y.csv"), "pre: predicts nothing; train it with --finetune"),
            (("tuned", "--out", "y.txt"), "--out: got y.txt, expected a file that ends in .csv"),
            (("tuned", "--data", "bad.csv", "--out", "y.csv"), "bad.csv: lacks the column 'd'"),
            (("tuned", "--data", "m.csv", "--out", "y.csv"), "m.csv: has the column 'e'"),
        ],
    )
    def test_refusals(self, refusal, tmp_path, arguments, message):
        (tmp_path / "bad.csv").write_text("a,b,c\n0,1,0\n")
        (tmp_path / "m.csv").write_text("a,b,c,d,e\n0,1,0,1,0\n")
        assert refusal("predict", *arguments).startswith(f"Error: {message}")
        assert not (tmp_path / "y.csv").exists()


@pytest.mark.parametrize("command", ["score", "encode", "predict"])
def test_each_row_of_a_file_has_one_of_the_result_and_what_is_left_out_is_said(call, command):
    rows = ["d,c,b,a", "0.5,0.5,0.5,0.5", "#N/A,0.2,0.3,0.1", "#0.5,0,0,0", "0,1,#DIV/0!,0"]
    Path("holes.csv").write_text("\n".join(rows) + "\n")
    run = "tuned" if command == "predict" else "pre"
    _, err = call(command, run, "--data", "holes.csv", "--out", "y.csv")
    assert len(table("y.csv")) == 1 + 3
    assert "holes.csv: read 2 cells such as #N/A as missing values" in err
    assert "holes.csv: passed over 1 lines that begin with #, such as line 4" in err
    assert err.count("passed over") == 1


REMARKED = "a,b,c,d\n0,1,0,1\n#1,1,1,1\n1,0,1,0\n"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", ("--test", "m.csv")),
        ("train", ("--unlabelled", "m.csv")),
        ("compare", ("--unlabelled", "m.csv", "--test", 0.2, "--starts", "random", "--seeds", 1)),
    ],
)
def test_what_is_left_out_of_other_files_is_said(call, command, options):
    Path("m.csv").write_text(REMARKED)
    own = ("--data", "t.csv", "--target", "kind", "--hidden", 3, "--epochs", 1, "--out", "more")
    _, err = call(command, *own, *options)
    assert "m.csv: passed over 1 lines that begin with #, such as line 3" in err


def test_what_is_left_out_is_said_once(call):
    text = REMARKED + "0,1,0,1\n1,0,1,0\n" * 9
    Path("m.csv").write_text(text.replace("\n", ",k\n"))
    call(*TRAIN, "--data", "m.csv", "--drop", "k", "--hidden", 3, "--out", "more")
    assert call("score", "more", "--out", "y.csv")[1].count("passed over") == 1


class TestFoldersOfImages:
    def test_a_picture_means_the_same_in_a_later_folder(self, call, tmp_path):
        Image = pytest.importorskip("PIL.Image", reason="images need Pillow")
        draws = np.random.default_rng(0)
        for number in range(20):  # of a camera with 12 bits
            pixels = draws.integers(0, 4096, (4, 4)).astype(np.uint16)
            path = tmp_path / "im" / "uv"[number % 2] / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
        wanted = ("--data", "im", "--hidden", "4", "--visible-units", "gaussian")
        _, err = call("train", *wanted, "--epochs", 1, "--out", "run")
        assert "as of a camera with 12 bits" in err
        assert "in 2 classes: u 10, v 10" in err
        call("encode", "run", "--data", "im", "--out", "all.npy")
        (tmp_path / "few" / "v").mkdir(parents=True)
        (tmp_path / "few" / ".hidden").mkdir()
        Image.fromarray(pixels).save(tmp_path / "few" / "v" / "a.png")
        Image.fromarray(pixels * 16).save(tmp_path / "few" / "v" / "b.png")
        Image.fromarray(pixels).save(tmp_path / "few" / ".hidden" / "a.png")
        _, err = call("encode", "run", "--data", "few", "--out", "few.npy")
        assert "left out: 1 image under names that begin with a dot" in err
        assert len(np.load("few.npy")) == 2
        np.testing.assert_allclose(np.load("few.npy")[0], np.load("all.npy")[-1], rtol=1e-5)


class TestScore:
    @pytest.mark.parametrize("by", ["reconstruction", "free-energy"])
    def test_known_answer(self, call, by):
        stack = syncpretrain.load("pre")
        out, _ = call("score", "pre", "--by", by, "--quantile", 0.9, "--out", "s.npz")
        X = np.genfromtxt("t.csv", delimiter=",", skip_header=1)[:, :4].astype(np.float32)
        with np.load("s.npz") as found:
            np.testing.assert_allclose(found["score"], scores(stack, X, by=by), rtol=1e-6)
            np.testing.assert_array_equal(found["outlier"], found["score"] > found["threshold"])
            threshold = float(found["threshold"])
            count = int(found["outlier"].sum())
        assert f"{count:,} above {threshold:.6g}, the 0.9 quantile" in out
        assert 1 <= count <= N // 5

    def test_the_part_of_each_column(self, call):
        call("score", "pre", "--data", "new.csv", "--per-feature", "--out", "s.csv")
        rows = table("s.csv")
        assert rows[0] == ["score", "outlier", *(f"score({name})" for name in "abcd")]
        numbers = np.array(rows[1:], dtype=float)
        assert numbers.shape == (7, 6)
        np.testing.assert_allclose(numbers[:, 2:].sum(axis=1), numbers[:, 0], rtol=1e-6)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("tuned --out s.csv", "--by: got reconstruction, but the stack was fine-tuned"),
            ("pre --quantile 2 --out s.csv", "--quantile: got 2.0, expected a number from 0 to 1"),
            ("pre --by free-energy --per-feature --out s.csv", "--per-feature: got it with --by"),
            ("pre --out s.csv --data new.csv --part train", "--part: got train, but new.csv has"),
        ],
    )
    def test_refusals(self, refusal, arguments, message):
        assert refusal("score", *arguments.split()).startswith(f"Error: {message}")


class TestFinetune:
    def test_on_a_labelled_table(self, call):
        own = ("--data", "t.csv", "--target", "kind", "--test", 0.2, *TUNE)
        call("finetune", "pre", *own, "--out", "new", "--quiet")
        found, before = syncpretrain.load("new"), syncpretrain.load("pre")
        assert found.head.classes == ("u", "v", "w")
        assert found.info["epochs"] == before.info["epochs"]
        config = msgspec.toml.decode(Path("new/config.toml").read_text())
        assert config["data"]["target"] == "kind"
        assert "drop" not in config["data"], "that of other data"
        assert config["finetune"]["objective"] == "classification"
        assert json.loads(Path("new/metrics.json").read_text())["data"]["test"] == 18
        data = load_dataset("t.csv", target="kind", test=0.2)
        again = syncpretrain.finetune(
            before,
            data.train,
            data.targets("train"),
            epochs=5,
            batch_size=10,
            **{name: config["pretrain"][name] for name in ("blas_threads", "seed")},
        )
        assert again.parameters_sha256 == found.parameters_sha256

    def test_on_fewer_rows_than_a_minibatch_of_pretraining(self, call):
        own = ("--data", "t.csv", "--target", "kind", "--examples", 9, "--finetune-epochs", 1)
        call("finetune", "pre", *own, "--out", "new", "--quiet")
        assert syncpretrain.load("new").head.classes == ("u", "v", "w")

    LABELLED = ("--data", "t.csv", "--target", "kind", "--finetune", "reconstruction")

    @pytest.mark.parametrize("own", [(), LABELLED])
    def test_for_reconstruction(self, call, own):
        call("finetune", "pre", *own, *TUNE, "--out", "new", "--quiet")
        stack = syncpretrain.load("new")
        assert stack.head is None
        assert stack.layers[0].decoder_weight is not None

    @pytest.mark.parametrize(
        "options",
        [
            "--schedule rounds --group-size 2",
            "--pace free",
            "--handoff minibatch --delay 0.3",
            "--epochs auto:2 --refresh-when drift:0.1",
            "--schedule greedy --early-stopping pseudo-likelihood",
        ],
    )
    def test_after_any_pretraining(self, call, options):
        own = ("--data", "t.csv", "--drop", "kind", "--hidden", "5,3", "--out", "any", "--quiet")
        call("train", *own, "--epochs", 1, "--batch-size", 10, *options.split())
        call("finetune", "any", "--data", "t.csv", "--target", "kind", *TUNE, "--out", "new")
        assert syncpretrain.load("new").head.classes == ("u", "v", "w")

    def test_it_is_resumed_to_the_same_bits(self, call, monkeypatch, tmp_path):
        own = ("--data", "t.csv", "--target", "kind", *TUNE, "--checkpoint-every", 1, "--quiet")
        call("finetune", "pre", *own, "--out", "whole")
        save = Checkpoints.save_finetuning

        def stop(self, state, *, done, final):
            save(self, state, done=done, final=final)
            if done == 2:
                raise Abort

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "save_finetuning", stop)
            with pytest.raises(Abort):
                call("finetune", "pre", *own, "--out", "stopped")
        resume_run(tmp_path / "stopped")
        runs = [syncpretrain.load(run).parameters_sha256 for run in ("whole", "stopped")]
        assert runs[0] == runs[1]

    def test_a_start_that_is_lost_is_not_replaced_by_another(self, call, refusal, tmp_path):
        own = ("--data", "t.csv", "--target", "kind", *TUNE, "--quiet")
        call("finetune", "pre", *own, "--out", "whole")
        (tmp_path / "whole" / "metrics.json").unlink()
        line = refusal("train", "--resume", "whole")
        assert "--resume: the stack that the run was to fine-tune is not in whole any more" in line

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("no", "no: holds no model"),
            ("pre --data t.csv --target knd", "--target: got 'knd', which is no column"),
            ("pre --data t.csv --target 1", "--target: got 'a', which is an input of the run"),
            ("pre/model.safetensors --out pre", "--out: pre is not empty"),
            ("pre --finetune none", "--finetune: got none, expected something"),
            ("pre --finetune classification", "--finetune: got classification, but"),
        ],
    )
    def test_refusals(self, refusal, arguments, message):
        line = refusal("finetune", *arguments.split())
        assert line.startswith(f"Error: {message}"), line


def test_compare_on_own_data(call):
    own = ("--data", "t.csv", "--target", "kind", "--test", 0.2, "--hidden", 4, *TUNE)
    starts = ("--starts", "greedy,random", "--seeds", 1, "--epochs", 1, "--batch-size", 10)
    report = json.loads(call("compare", *own, *starts, "--labels", "9,all", "--json", "--quiet")[0])
    assert report["layers"] == [4, 4]
    assert {row["labels"] for row in report["table"]} == {9, 65}


def test_evaluate_and_encode_by_columns(call):
    whole = json.loads(call("evaluate", "tuned", "--json")[0])
    assert whole["accuracy"]["test"] is not None
    assert whole["data"]["sha256"] == whole["trained_on"]["sha256"]
    call("encode", "pre", "--data", "new.csv", "--out", "z.csv")
    call("encode", "pre", "--data", "new.csv", "--out", "z.npy")
    rows = table("z.csv")
    assert rows[0] == ["unit1", "unit2", "unit3"]
    np.testing.assert_array_equal(np.array(rows[1:], dtype=np.float32), np.load("z.npy"))


class TestCounts:
    @pytest.fixture
    def words(self, tmp_path):
        X = np.zeros((70, 12))
        for i in range(140):
            X[i // 2, 7 * i % 12] = i % 3 + 1
        np.savez(tmp_path / "X.npz", **vars(csr(X)), format=np.array(b"csr"), y=np.arange(70) % 2)
        return ("--data", "X.npz", "--hidden", 4, "--epochs", 1, "--batch-size", 10, "--quiet")

    def test_a_stream(self, call, words):
        call("train", *words, "--handoff", "minibatch", "--out", "run")
        assert syncpretrain.load("run").units[0] == "counts:12"

    def test_compare(self, call, words):
        own = ("--test", 0.2, "--finetune-epochs", 1, "--finetune-batch-size", 10)
        call("compare", *words, *own, "--starts", "random", "--seeds", 1, "--out", "compared")
        assert "counts:12" in Path("compared", "config.toml").read_text()

    def test_the_advice(self, refusal, words):
        line = refusal("train", *words, "--visible-units", "bernoulli")
        assert "expected values in [0, 1]; take --visible-units counts for numbers of words" in line


def test_a_value_that_binary_units_refuse_is_named_by_the_file_and_the_column(call, tmp_path):
    draws = np.random.default_rng(0)
    rows = [f"{age:.2f},{'rgb'[i % 3]},{i % 2}" for i, age in enumerate(5 * draws.random(60))]
    (tmp_path / "flags.csv").write_text("\n".join(["age,colour,flag", *rows]))
    (tmp_path / "others.csv").write_text("age,colour,flag\n1.5,r,1\n2.5,g,2\n")
    own = ("--visible-units", "auto", "--hidden", 3, "--out", "flags")
    call(*TRAIN, "--data", "flags.csv", *own)
    _, said = call("encode", "flags", "--data", "others.csv", "--out", "z.npy", status=2)
    assert "others.csv: got 2 at row 1 (counted from 0), column 'flag', expected values in" in said
