"""Exported parts: the steps, plain arrays, the command, and what is refused."""

import re
import sys

import numpy as np
import pytest
from exportcases import CASES, HEADS, case, close, expected, inputs_of, parts_of_case
from npzreader import Reader

from syncpretrain import pretrain
from syncpretrain.errors import SettingsError
from syncpretrain.models.export import describe as describe_module
from syncpretrain.models.export import formats
from syncpretrain.models.export.describe import default_part, describe
from syncpretrain.models.export.formats import EXPORT_FORMATS, write_export
from syncpretrain.models.export.torch_model import OWN_MODULES, _modules

PAIRS = [(name, head) for name in CASES for head in HEADS]


class TestPlainArrays:
    @pytest.mark.parametrize(("name", "head"), PAIRS)
    def test_they_compute_what_the_stack_does(self, tmp_path, name, head):
        for part in parts_of_case(name, head):
            path = tmp_path / f"{part}.npz"
            assert case(name, head).export(path, part) == [path]
            close(Reader(path)(inputs_of(name, part)), expected(name, head, part))

    @pytest.mark.filterwarnings("ignore::syncpretrain.errors.NovelValueWarning")
    def test_new_values_of_what_never_varied_are_left_out(self, tmp_path):
        stack, rows = case("a constant"), inputs_of("a constant", "encoder")
        (path,) = stack.export(tmp_path / "e.npz", "encoder")
        rows[:, 2] += 7
        close(Reader(path)(rows), stack.encode(rows))

    def test_names_stand_beside_them(self, tmp_path):
        path = tmp_path / "c.npz"
        write_export(path, "npz", describe(case("table", "three").model))
        about = Reader(path).about
        assert (about["part"], about["classes"]) == ("classifier", ["b", "c", "a"])
        assert about["inputs"] == ["age", "colour", "codes", "size"]
        assert about["categories"] == {"colour": ["blue", "green", "red"], "size": ["L", "S"]}
        write_export(path, "npz", describe(case("table").model, "decoder"))
        names = ["age", *(f"colour={x}" for x in ("blue", "green", "red")), "codes"]
        assert Reader(path).about["outputs"] == [*names, "size=L", "size=S"]


class TestParts:
    def test_the_default_is_what_the_stack_was_trained_for(self):
        assert default_part(case("dense").model) == "encoder"
        assert default_part(case("dense", "two").model) == "classifier"
        assert default_part(case("dense", "numbers").model) == "regressor"

    @pytest.mark.parametrize(
        ("name", "head", "part", "message"),
        [
            ("dense", "none", "top", "expected encoder, decoder, "),
            ("dense", "none", "classifier", "the stack is no classifier; fine-tune it for classif"),
            ("dense", "numbers", "classifier", "the stack is no classifier; .* or take regressor"),
            ("dense", "two", "regressor", "the stack is no regressor; .* or take classifier"),
            ("convolutions", "two", "decoder", "was fine-tuned as a classifier and has no decoder"),
            ("dense", "numbers", "autoencoder", "was fine-tuned as a regressor and has no decoder"),
            ("counts", "none", "autoencoder", "has as many words as the document"),
        ],
    )
    def test_one_that_a_stack_does_not_have(self, name, head, part, message):
        with pytest.raises(SettingsError, match=f"^part: got {part}, .*{message}"):
            describe(case(name, head).model, part)

    def test_units_that_no_format_has(self, monkeypatch):
        monkeypatch.delitem(describe_module.FUNCTIONS, "tanh")
        with pytest.raises(SettingsError, match=r"^units: got tanh, which no format has"):
            describe(case("standardized").model)


class TestFormats:
    def test_a_missing_package_is_named_before_work_starts(self, monkeypatch, tmp_path):
        monkeypatch.setattr(formats, "find_spec", lambda name: None)
        for name, kind in EXPORT_FORMATS.items():
            if kind.package:
                with pytest.raises(SettingsError, match=f"^format: got {name}.*{kind.package}"):
                    write_export(tmp_path / f"x{kind.suffix}", name, describe(case("dense").model))
        assert not list(tmp_path.iterdir())

    def test_a_backend_that_keras_does_not_know(self, tmp_path, monkeypatch):
        (tmp_path / "keras.py").write_text('raise ValueError("Unable to import backend : no")')
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "keras", raising=False)
        with pytest.raises(SettingsError, match=r"backend : no\); .* in KERAS_BACKEND"):
            case("dense").to_keras()

    def test_modules_for_pytorch_are_all_known(self):
        text = OWN_MODULES.read_text(encoding="utf-8")
        written = {
            module.name
            for name, head in PAIRS
            for part in parts_of_case(name, head)
            for module in _modules(describe(case(name, head).model, part))
        }
        own = {name for name in written if not name.startswith("nn.")}
        assert {line.split("(")[0][6:] for line in text.splitlines() if line[:6] == "class "} == own

    def test_a_python_file_of_the_user_stays(self, tmp_path):
        (tmp_path / "train.py").write_text("print()\n")
        network = describe(case("dense").model)
        for name in ("train", "my-net", "class"):
            message = "another file of that name" if name == "train" else "no Python module"
            with pytest.raises(SettingsError, match=f"^out: .*{message}"):
                write_export(tmp_path / f"{name}.safetensors", "torch", network)
        assert (tmp_path / "train.py").read_text() == "print()\n"
        for _ in range(2):  # its own is replaced
            assert len(write_export(tmp_path / "net.safetensors", "torch", network)) == 2


class TestCommand:
    @pytest.fixture
    def run(self, tmp_path):
        case("table", "three").save(tmp_path / "model.safetensors")
        case("dense").save(tmp_path / "dense.safetensors")
        return tmp_path

    def test_the_default_is_the_classifier_by_the_suffix(self, call, run):
        said, _ = call("export", run, "--out", run / "c.npz")
        assert said == f"{run / 'c.npz'}: classifier, 4 columns to 3 classes\n"
        found = Reader(run / "c.npz")(inputs_of("table", "classifier"))
        close(found, expected("table", "three", "classifier"))

    def test_of_a_stack_of_bytes_it_says_what_to_divide_by(self, call, tmp_path):
        X = np.random.default_rng(0).integers(0, 256, (40, 6), dtype=np.uint8)
        pretrain(X, hidden=3, epochs=1, warn=False).save(tmp_path / "model.safetensors")
        _, said = call("export", tmp_path, "--out", tmp_path / "c.npz")
        assert said == "trained on bytes: give it rows divided by 255\n"

    def test_two_files_for_pytorch(self, call, run):
        options = ["--format", "torch", "--part", "autoencoder", "--out", run / "net.safetensors"]
        said, _ = call("export", run / "dense.safetensors", *options)
        names = f"{run / 'net.safetensors'} and {run / 'net.py'}"
        assert said == f"{names}: autoencoder, 12 values to 12 values\n"
        compile((run / "net.py").read_text(), "net.py", "exec")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--out", "c.bin"], "--out: got c.bin, expected a file that ends in .onnx, "),
            (["--out", "c.npz", "--format", "torch"], "--out: got c.npz, .* in .safetensors"),
            (["--out", "c.npz", "--part", "decoder"], "--part: got decoder, .* as a classifier"),
            (["--out", "no/c.npz"], "--out: the folder no does not exist"),
        ],
    )
    def test_what_is_refused(self, call, run, monkeypatch, options, message):
        monkeypatch.chdir(run)
        _, said = call("export", "model.safetensors", *options, status=2)
        assert re.search(f"^Error: {message}.*\n$", said)
