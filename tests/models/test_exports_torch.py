"""Exported parts in PyTorch, and stacks of PyTorch's layers."""

import runpy
from itertools import pairwise

import numpy as np
import pytest
from exportcases import CASES, HEADS, case, close, expected, inputs_of, parts_of_case

from syncpretrain import Stack, finetune
from syncpretrain.errors import DataError

torch = pytest.importorskip("torch", reason="exports are opened by PyTorch")
nn = torch.nn
X = np.random.default_rng(0).random((5, 6), dtype=np.float32)


def output(module, rows):
    with torch.no_grad():
        return module(torch.tensor(rows)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_the_outputs_are_those_of_the_stack(name):
    for head in HEADS:
        for part in parts_of_case(name, head):
            wanted = expected(name, head, part)
            close(output(case(name, head).to_torch(part), inputs_of(name, part)), wanted)


@pytest.mark.parametrize("name", ["table", "convolutions", "probabilistic pooling"])
def test_the_file_loads_by_its_own_text(name, tmp_path, call):
    case(name).save(tmp_path / "model.safetensors")
    call("export", tmp_path, "--part", "autoencoder", "--out", tmp_path / "net.safetensors")
    text = (tmp_path / "net.py").read_text()
    assert "syncpretrain." not in text.partition("\n")[2], "it needs no package but PyTorch"
    module = runpy.run_path(str(tmp_path / "net.py"))["load"]()
    close(output(module, inputs_of(name, "autoencoder")), expected(name, "none", "autoencoder"))


def plain(*widths, function=nn.Sigmoid):
    torch.manual_seed(0)
    pairs = pairwise(widths)
    return nn.Sequential(*(m for v, h in pairs for m in (nn.Linear(v, h), function())))


CLASSIFIER = nn.Sequential(plain(4, 3), nn.Linear(3, 2))


class TestFromTorch:
    def test_codes_are_the_networks(self):
        for function in (nn.Sigmoid, nn.ReLU, nn.Tanh, nn.Identity):
            net = nn.Sequential(nn.Flatten(), plain(6, 5, 3, function=function), nn.Dropout())
            close(Stack.from_torch(net).encode(X), output(net.eval(), X))

    def test_a_decoder_of_its_own(self):
        encoder, decoder = plain(6, 5, 3), plain(3, 5, 6)
        stack = Stack.from_torch(encoder, decoder, visible_units="bernoulli")
        close(stack.reconstruct(X), output(decoder, output(encoder, X)))
        close(output(stack.to_torch("autoencoder"), X), stack.reconstruct(X))

    def test_a_classifier_is_fine_tuned_on(self, bits):
        net = nn.Sequential(plain(16, 8), nn.Linear(8, 2))
        stack = Stack.from_torch(net, classes=["no", "yes"], visible_units="bernoulli")
        close(stack.predict_proba(bits), torch.softmax(torch.from_numpy(output(net, bits)), 1))
        y = np.where(bits[:, 0] > 0.5, "yes", "no")
        tuned = finetune(stack, bits, y, epochs=10, batch_size=10, learning_rate=0.05)
        assert (tuned.predict(bits) == y).mean() > 0.9

    def test_a_regression(self):
        net = nn.Sequential(plain(6, 3), nn.Linear(3, 1, bias=False))
        close(Stack.from_torch(net, regression=True).predict(X), output(net, X)[:, 0])

    @pytest.mark.parametrize(
        ("network", "options", "message"),
        [
            (nn.Sequential(nn.Linear(3, 2), nn.GELU()), {}, "network: got GELU at place 1"),
            (nn.Sequential(nn.Conv2d(1, 2, 3)), {}, "network: got Conv2d at place 0"),
            (nn.Sequential(nn.Sigmoid(), nn.Linear(3, 2)), {}, "network: got Sigmoid at place 0"),
            (nn.Sequential(), {}, "network: got no dense layer"),
            (plain(3, 2), {"classes": [0, 1]}, "network: got sigmoid behind the last layer"),
            (CLASSIFIER, {"classes": [1, 1]}, "classes: got 2 for"),
            (nn.Linear(3, 2), {"regression": True}, "network: got 1 dense layers, expected one"),
            (nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), {}, "classes: got none for a softmax"),
            (plain(4, 3), {"decoder": plain(3, 2, 4)}, "decoder: got 2 dense layers, expected 1"),
            (plain(4, 3), {"decoder": plain(2, 4)}, r"decoder: got a layer of shape \(2, 4\)"),
            (nn.Sequential(nn.Linear(4, 3), nn.Linear(2, 2)), {}, "network: dense layer 2 reads 2"),
        ],
    )
    def test_what_is_no_stack(self, network, options, message):
        with pytest.raises(DataError, match=f"^{message}"):
            Stack.from_torch(network, **options)
