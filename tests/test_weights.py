import pytest
import torch
from torch import nn

from marl_llm.errors import CheckpointError, ModelError
from marl_llm.types import Weights
from marl_llm.weights import assign, checksum, named_weights, read, verified, write


class Tied(nn.Module):
    """Embeddings used at both ends, and a buffer."""

    def __init__(self, fill):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=True)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((), float(fill)))
        nn.init.constant_(self.embed.weight, fill)


def test_tied_weights_are_named_once():
    assert list(named_weights(Tied(1))) == ["scale", "embed.weight", "head.bias"]


def test_the_checksum_sees_names_dtypes_shapes_and_bytes():
    base = {"a": torch.arange(6.0), "b": torch.tensor(2)}
    others = [
        {"a": torch.arange(6.0), "c": torch.tensor(2)},
        {"a": torch.arange(6.0).to(torch.float64), "b": torch.tensor(2)},
        {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(2)},
        {"a": torch.arange(6.0).flip(0), "b": torch.tensor(2)},
    ]
    assert len({checksum(tensors) for tensors in [base, *others]}) == 5
    reordered = {"b": torch.tensor(2), "a": torch.arange(12.0)[::2] / 2}
    assert checksum(reordered) == checksum(base)


def test_half_precision_has_a_checksum():
    ones = torch.ones(3, dtype=torch.bfloat16)
    assert checksum({"a": ones}) != checksum({"a": ones.half()})


def test_written_and_read(tmp_path):
    tensors = named_weights(Tied(3))
    write(tensors, tmp_path / "deep" / "w.safetensors")
    again = read(tmp_path / "deep" / "w.safetensors")
    assert checksum(again) == checksum(tensors)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["w.safetensors"]


def test_files_that_are_missing_or_cut_short(tmp_path):
    file = tmp_path / "w.safetensors"
    with pytest.raises(CheckpointError, match="no weights at"):
        read(file)
    write(named_weights(Tied(3)), file)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="cut short"):
        read(file)


def test_an_altered_file_is_refused(tmp_path):
    file = tmp_path / "w.safetensors"
    tensors = named_weights(Tied(3))
    write(tensors, file)
    weights = Weights("main", 4, checksum(tensors), path=str(file))
    assert set(verified(weights)) == set(tensors)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="version 4 of policy 'main'"):
        verified(weights)


def test_assigned_under_any_of_the_names():
    source, target = Tied(5), Tied(1)
    tensors = named_weights(source)
    assign(target, tensors)
    assert checksum(named_weights(target)) == checksum(tensors)
    assert target.head.weight is target.embed.weight
    other = Tied(1)
    assign(other, {**{k: v for k, v in tensors.items() if k != "embed.weight"},
                   "head.weight": tensors["embed.weight"]})  # fmt: skip
    assert checksum(named_weights(other)) == checksum(tensors)


def test_assigned_in_the_dtype_of_the_model():
    model = Tied(1).to(torch.bfloat16)
    assign(model, named_weights(Tied(3)))
    assert model.embed.weight.dtype == torch.bfloat16
    assert model.embed.weight.detach()[0, 0] == 3


def test_what_does_not_fit_changes_nothing():
    model, tensors = Tied(1), named_weights(Tied(3))
    before = checksum(named_weights(model))
    bad = {
        "no weight 'embed.wait'; did you mean 'embed.weight'": {
            **tensors,
            "embed.wait": tensors["scale"],
        },
        "lack 'head.bias'": {k: v for k, v in tensors.items() if k != "head.bias"},
        "has shape": {**tensors, "head.bias": torch.zeros(5)},
        "one tensor in the model": {**tensors, "head.weight": tensors["embed.weight"] + 1},
    }
    for message, wrong in bad.items():
        with pytest.raises(ModelError, match=message):
            assign(model, wrong)
        assert checksum(named_weights(model)) == before
