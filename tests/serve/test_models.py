import pytest
import torch
from safetensors.torch import load_file, save_file

from marl_llm.errors import ModelError
from marl_llm.serve.models import device_of, dtype_of, end_ids, load_model
from marl_llm.serve.tiny import build_model, build_tokenizer, save

TOKENIZER = build_tokenizer(["check or bet"], 300)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(build_model(TOKENIZER, seed=0), TOKENIZER, folder)
    return folder


def damaged(saved, folder):
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_loads_in_the_wanted_dtype_for_evaluation(saved):
    model, tokenizer = load_model(str(saved), dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert len(tokenizer) == len(TOKENIZER)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(ModelError, match=r"no model at .*missing"):
        load_model(str(tmp_path / "missing"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no weights"):
        load_model(str(tmp_path))


def test_a_name_that_cannot_be_one():
    with pytest.raises(ModelError, match="there is no model 'not a name'"):
        load_model("not a name")


def test_weights_cut_short(saved, tmp_path):
    folder = damaged(saved, tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cut short"):
        load_model(str(folder))


def test_weights_that_lack_a_tensor(saved, tmp_path):
    folder = damaged(saved, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 of .* model\.norm\.weight"):
        load_model(str(folder))


def test_a_configuration_cut_short(saved, tmp_path):
    folder = damaged(saved, tmp_path)
    (folder / "config.json").write_text('{"model_type": "qwen3", ')
    with pytest.raises(ModelError, match="cut short"):
        load_model(str(folder))


def test_a_model_of_another_kind(saved, tmp_path):
    folder = damaged(saved, tmp_path)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ModelError, match="not a causal language model"):
        load_model(str(folder))


def test_a_tokenizer_of_another_model(saved, tmp_path):
    folder = damaged(saved, tmp_path)
    build_tokenizer(["many words make many tokens"] * 9, 400).save_pretrained(folder)
    with pytest.raises(ModelError, match="do not belong together"):
        load_model(str(folder))


def test_dtypes_and_devices():
    with pytest.raises(ModelError, match="did you mean 'bfloat16'"):
        dtype_of("bfloat", "cpu")
    with pytest.raises(ModelError, match="bfloat16 or float32"):
        dtype_of("float16", "cpu")
    with pytest.raises(ModelError, match="unknown device"):
        device_of("gpu")
    with pytest.raises(ModelError, match="not supported"):
        device_of("meta")
    wanted = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ModelError, match="device=cpu"):
        device_of(wanted)


def test_a_model_without_an_end():
    model = build_model(TOKENIZER, seed=0)
    model.generation_config.eos_token_id = None
    bare = type(TOKENIZER)(tokenizer_object=TOKENIZER.backend_tokenizer)
    assert end_ids(model, bare)  # <|im_end|> is in its vocabulary
    model.generation_config.eos_token_id = [3, 4]
    assert {3, 4} <= end_ids(model, TOKENIZER)
