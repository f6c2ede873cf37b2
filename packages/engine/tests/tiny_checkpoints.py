"""Builds tiny random checkpoints as transformers saves them, each with a small tokenizer trained on the spot.

Plain functions, one per family, so that any test of the workspace can ask for a variation. Every architecture
gets the kind of tokenizer that its real models carry: byte-level BPE with a begin token for Llama, BPE with
byte fallback for Mistral, byte-level BPE under NFC for Qwen2. Knows nothing of the engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCAB_SIZE = 512

CHAT_TEMPLATE = (
    "{{ bos_token if bos_token else '' }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A bridge of stone crosses the river; under it, boats wait for the tide.",
    "Numbers such as 12, 345 and 6789 are written in digits.",
    "She said: 'I will come tomorrow, won't I?' and they'd already left.",
    "Na\u00efve caf\u00e9 owners in Z\u00fcrich serve cr\u00e8me br\u00fbl\u00e9e.",
    "def add(a, b):\n    return a + b\n",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
)
_CORPUS = _SENTENCES * 4

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_SPLIT = _SPLIT % "1,3"
QWEN2_SPLIT = _SPLIT % "1"


def build_llama(
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
    **config: Any,  # keyword arguments of LlamaConfig
) -> Path:
    """Write a Llama checkpoint (untied head, 3 layers, 8 heads, 4 of them for keys) and return its folder."""
    settings = {**_shape(), "num_hidden_layers": 3, "bos_token_id": 0, "eos_token_id": 1, **config}
    model = _random_model(LlamaForCausalLM, LlamaConfig(**settings), seed, dtype)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer = train_byte_level_tokenizer(
        ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"], bos="<|begin|>"
    )
    _save_tokenizer(folder, tokenizer, bos_token="<|begin|>", eos_token="<|end|>")
    return folder


def build_mistral(
    folder: Path,
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
    **config: Any,  # keyword arguments of MistralConfig
) -> Path:
    """Write a Mistral checkpoint (sliding window longer than its context) and return its folder."""
    settings = {**_shape(), "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2, **config}
    model = _random_model(MistralForCausalLM, MistralConfig(**settings), seed, dtype)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    _save_tokenizer(
        folder, train_byte_fallback_tokenizer(), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    return folder


def build_qwen2(
    folder: Path,
    *,
    seed: int = 2,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
    **config: Any,  # keyword arguments of Qwen2Config
) -> Path:
    """Write a Qwen2 checkpoint (query, key and value biases, tied head) and return its folder."""
    settings = {**_shape(), "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 2, **config}
    model = _random_model(Qwen2ForCausalLM, Qwen2Config(**settings), seed, dtype)
    # Two ends of sequence, the second only here: what a generation config adds must be read.
    model.generation_config = GenerationConfig(eos_token_id=[2, 0], top_p=0.8, do_sample=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    special_tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = train_byte_level_tokenizer(special_tokens, split=QWEN2_SPLIT, nfc=True)
    _save_tokenizer(folder, tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    return folder


def train_byte_level_tokenizer(
    special_tokens: list[str],
    *,
    bos: str | None = None,
    split: str = LLAMA_SPLIT,
    nfc: bool = False,
    vocab_size: int = VOCAB_SIZE,
) -> Tokenizer:
    """Return a byte-level BPE tokenizer; special tokens take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos}:1 $B:1",
            special_tokens=[(bos, special_tokens.index(bos))],
        )
    return tokenizer


def train_byte_fallback_tokenizer(vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Return a BPE tokenizer over characters with byte fallback, as SentencePiece models are converted."""
    special_tokens = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    metaspace = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    trained.normalizer = normalizers.Sequence(metaspace)
    # Only while training: merges stay inside words, as SentencePiece keeps them.
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581?[^\u2581]+"), behavior="isolated")
    # Rare scripts stay out of the alphabet, so that byte fallback is met in tests.
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens + byte_tokens,
        limit_alphabet=70,
        show_progress=False,
    )
    trained.train_from_iterator(_CORPUS, trainer)
    trained.pre_tokenizer = None
    trained.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    trained.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    # The trainer marks byte tokens as special; they are ordinary pieces of the vocabulary.
    state = trained.to_str()
    return _with_special_tokens(state, special_tokens)


def _with_special_tokens(state: str, special_tokens: list[str]) -> Tokenizer:
    tree = json.loads(state)
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] in special_tokens]
    tokenizer = Tokenizer.from_str(json.dumps(tree))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special_tokens])
    return tokenizer


def _shape() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        # Wide enough that the most likely token leads clearly: greedy text must not hang on rounding.
        "initializer_range": 0.2,
    }


def _random_model(
    implementation: type[PreTrainedModel], config: PretrainedConfig, seed: int, dtype: torch.dtype
) -> PreTrainedModel:
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = implementation(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Fresh norms are ones and fresh biases zeros; a loader that mixed them up would not be noticed.
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    torch.set_rng_state(generator_state)
    return model.to(dtype).eval()


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, **special_tokens: str) -> None:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        **special_tokens,
    )
    wrapped.save_pretrained(folder)
