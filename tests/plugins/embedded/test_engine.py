"""The engine: configuration, loading, checkpoints, export, digest."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.errors import DataError, EngineError, StorageError, UsageError
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine

OPTIMIZATION = Optimization(learning_rate=1e-3, mini_batch_turns=4, epochs=2)


def train(engine, bench, updates, start=0):
    """Some iterations of generate, update, publish; returns all log-probabilities, metrics and the final digest."""
    record = []
    for number in range(start, start + updates):
        turns = bench.turns(bench.generate(engine, bench.texts(10, seed=number)))
        record.append(turns.old_log_probs.tobytes())
        record.append(engine.learner.update(turns, bench.credit(turns, number), PolicyGradient(kl_coef=0.01), OPTIMIZATION))
        engine.publish()
    return record, engine.digest()


def test_equal_runs_are_equal_bit_for_bit(make_engine, bench):
    assert train(make_engine(), bench, 3) == train(make_engine(), bench, 3)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_resume_is_exact(make_engine, bench, tmp_path, first):
    record, digest = train(make_engine(), bench, 4)
    engine = make_engine()
    begun, _ = train(engine, bench, first)
    engine.learner.save(tmp_path / "state")
    resumed = make_engine()
    resumed.learner.load(tmp_path / "state")
    assert resumed.rollout.version == first
    rest, resumed_digest = train(resumed, bench, 4 - first, start=first)
    assert begun + rest == record
    assert resumed_digest == digest


def test_saving_twice_gives_the_same_bytes(make_engine, bench, tmp_path):
    engine = make_engine()
    train(engine, bench, 1)
    engine.learner.save(tmp_path / "a")
    other = make_engine()
    other.learner.load(tmp_path / "a")
    other.learner.save(tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.parametrize("damage", ["missing", "cut", "other model"])
def test_a_damaged_checkpoint_is_a_storage_error(make_engine, tmp_path, damage):
    engine = make_engine("gpt2" if damage == "other model" else "qwen2")
    engine.learner.save(tmp_path / "state")
    weights = tmp_path / "state" / "weights.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(StorageError):
        make_engine().learner.load(tmp_path / "state")


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_export_is_a_folder_that_reproduces_the_trained_policy(make_engine, models, bench, tmp_path, architecture):
    engine = make_engine(architecture)
    train(engine, bench, 1)
    engine.learner.export(tmp_path / "model")
    again = EmbeddedEngine(EmbeddedConfig(), str(tmp_path / "model"), 0)
    assert again.digest() == engine.digest() != make_engine(architecture).digest()
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    base = transformers.AutoModelForCausalLM.from_pretrained(models[architecture])
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        logits = plain(input_ids=ids).logits
        torch.testing.assert_close(logits, engine._policy.model(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
        assert (logits - base(input_ids=ids).logits).abs().max() > 1e-3
    one, other = bench.generate(engine, ["w1 w2"]), bench.generate(again, ["w1 w2"])
    np.testing.assert_array_equal(one[0].token_ids, other[0].token_ids)
    assert one[0].text == other[0].text


def test_digest_tells_weights_apart(make_engine):
    engine = make_engine()
    before = engine.digest()
    assert before == make_engine(seed=5).digest()
    with torch.no_grad():
        next(engine._policy.model.parameters()).view(-1)[0] += 1e-6
    assert engine.digest() != before


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
def test_what_the_tiny_architectures_allow(make_engine, architecture):
    """The fast paths are found by trying; if these stop passing, everything still works, but slowly."""
    forward = make_engine(architecture)._policy.forward
    assert forward.takes_masks
    assert forward._last_feed_forward is not None


def test_sliding_windows_limit_the_context(tmp_path, models):
    folder = shutil.copytree(models["qwen2"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    policy = EmbeddedEngine(EmbeddedConfig(), str(folder), 0)._policy
    assert policy.limit == 24
    assert not policy.forward.takes_masks


def test_the_tokenizer_is_the_one_of_the_file(models):
    """AutoTokenizer may rebuild it in the way it expects of the model type."""
    engine = EmbeddedEngine(EmbeddedConfig(), str(models["qwen2"]), 0)
    vocabulary = json.loads((models["qwen2"] / "tokenizer.json").read_text())["model"]["vocab"]
    for word, number in vocabulary.items():
        assert engine._policy.tokenizer.encode(word, add_special_tokens=False) == [number]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", "tpu"),
        ("dtype", "float16"),
        ("dtype", "bfloat16"),
        ("threads", 0),
        ("max_batch", 0),
        ("micro_batch_tokens", 0),
        ("max_context", 1),
        ("verify_log_probs", 0.0),
        ("max_staleness", -1),
    ],
)
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(UsageError, match=f"engine.{key}={value}"):
        EmbeddedEngine(EmbeddedConfig(**{key: value}), "nowhere", 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_says_what_to_do(models):
    with pytest.raises(EngineError, match="no CUDA device") as caught:
        EmbeddedEngine(EmbeddedConfig(device="cuda"), str(models["qwen2"]), 0)
    assert "engine.device=cpu" in caught.value.fix
    assert EmbeddedEngine(EmbeddedConfig(device="auto"), str(models["qwen2"]), 0).deterministic


def break_folder(folder, how):
    if how == "no folder":
        shutil.rmtree(folder)
    elif how == "no config":
        (folder / "config.json").unlink()
    elif how == "bad config":
        (folder / "config.json").write_text("{")
    elif how == "unknown architecture":
        (folder / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    elif how == "not causal":
        (folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    elif how == "no weights":
        (folder / "model.safetensors").unlink()
    elif how == "cut weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    elif how == "no tokenizer":
        for file in folder.glob("*token*"):
            file.unlink()
    elif how == "no template":
        (folder / "chat_template.jinja").unlink()
    elif how == "missing tensors":
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        weights.pop("model.layers.1.mlp.up_proj.weight")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("no folder", "does not exist"),
        ("no config", "no config.json"),
        ("bad config", "config.json cannot be used"),
        ("unknown architecture", "abacus"),
        ("not causal", "CLIP"),
        ("no weights", "weights cannot be read"),
        ("cut weights", "weights cannot be read"),
        ("no tokenizer", "has no tokenizer"),
        ("no template", "no chat template"),
        ("missing tensors", "lack model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_a_model_folder_that_cannot_be_used_says_why(models, tmp_path, capfd, how, says):
    folder = shutil.copytree(models["qwen2"], tmp_path / "model")
    break_folder(folder, how)
    with pytest.raises(DataError, match=says) as caught:
        EmbeddedEngine(EmbeddedConfig(), str(folder), 0)
    assert str(folder) in str(caught.value) and caught.value.fix
    assert capfd.readouterr() == ("", "")


def test_recurrent_models_are_refused(models, tmp_path):
    config = transformers.MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=400, state_size=4)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(models["qwen2"] / name, tmp_path / name)
    with pytest.raises((EngineError, DataError), match="Mamba"):
        EmbeddedEngine(EmbeddedConfig(), str(tmp_path), 0)


def test_importing_the_engine_does_not_import_torch():
    code = "import sys, threespo_plugins.embedded.engine as e; e.EmbeddedConfig().validate(); assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.25)])
def test_a_gpu_agrees_with_the_cpu(make_engine, bench, dtype, tolerance):
    gpu, cpu = make_engine(device="cuda", dtype=dtype), make_engine()
    turns = bench.turns(bench.generate(gpu, bench.texts(12) + ["w1"] * 4))
    np.testing.assert_allclose(cpu.learner.score(turns)[turns.response_mask], turns.old_log_probs[turns.response_mask], atol=tolerance)
    metrics = gpu.learner.update(turns, bench.credit(turns), PolicyGradient(kl_coef=0.1), OPTIMIZATION)
    assert metrics["logprob_gap_max"] < tolerance
    gpu.publish()
    assert bench.generate(gpu, ["w1"])[0].policy_version == 1
