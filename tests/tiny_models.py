"""Models of a few thousand parameters, for tests: a causal language model, and a published phoneme decoder."""
from pathlib import Path


def write_causal(folder: Path, positions: int = 64) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>", "<s>"], show_progress=False)
    tokenizer.train_from_iterator(["we can hear you now"] * 9, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(1)
    settings = GPT2Config(vocab_size=300, n_embd=8, n_layer=1, n_head=2, n_positions=positions,
                          bos_token_id=1, eos_token_id=0)
    AutoModelForCausalLM.from_config(settings).save_pretrained(folder)


def write_published(folder: Path, features: int = 4, sessions: tuple[str, str] = ("a", "b")) -> dict:
    """A checkpoint in the layout of the published baseline; returns its tensors."""
    import torch

    from b2t_kit.models.gru import GRUConfig
    torch.manual_seed(1)
    state = GRUConfig(num_days=2, num_features=features, hidden=3, num_layers=1, padding="valid").build().state_dict()
    saved = {name: value for name, value in state.items() if not name.startswith("day_layer")}
    for day in range(2):
        saved[f"day_weights.{day}"] = state["day_layer.weight"][day].clone()
        saved[f"day_biases.{day}"] = state["day_layer.bias"][day][None].clone()
    folder.mkdir()
    torch.save({"model_state_dict": saved, "val_PER": 0.1}, folder / "best_checkpoint")
    (folder / "args.yaml").write_text("model: {patch_size: 14, patch_stride: 4}\ndataset: {sessions: [" + ", ".join(sessions) + "]}\n")
    return saved
