//! How tokenizers of byte pairs split texts into words, by the names that GGUF files have for it.
//! Knows no tokens.

use serde_json::{Value, json};

/// A way to split words, and what goes with it in the models that use it.
pub(super) struct Split {
    names: &'static [&'static str],
    /// What a word is: one of the expressions that the tokenizers crate knows as code.
    expression: &'static str,
    /// Whether each digit is a word of its own.
    digits_alone: bool,
    /// Whether a word that is a token is not looked at any further.
    pub(super) whole_words_first: bool,
    /// Whether characters are composed first.
    pub(super) composed: bool,
    /// Whether texts begin with a token of their own where the file does not say.
    pub(super) begins: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const PLAIN: Split = Split {
    names: &[],
    expression: GPT2,
    digits_alone: false,
    whole_words_first: false,
    composed: false,
    begins: false,
};

const SPLITS: [Split; 7] = [
    Split {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        expression: LLAMA3,
        whole_words_first: true,
        begins: true,
        ..PLAIN
    },
    Split { names: &["dbrx", "smaug-bpe"], expression: LLAMA3, ..PLAIN },
    Split { names: &["qwen2"], expression: QWEN2, composed: true, ..PLAIN },
    Split { names: &["smollm", "starcoder", "refact", "command-r"], digits_alone: true, ..PLAIN },
    Split { names: &["gpt-2", "phi-2"], ..PLAIN },
    Split { names: &["tekken"], expression: TEKKEN, whole_words_first: true, begins: true, ..PLAIN },
    Split { names: &["gpt-4o"], expression: GPT4O, ..PLAIN },
];

/// The way of this name.
pub(super) fn find(name: &str) -> Option<&'static Split> {
    SPLITS.iter().find(|split| split.names.contains(&name))
}

/// All names.
pub(super) fn names() -> Vec<&'static str> {
    SPLITS.iter().flat_map(|split| split.names).copied().collect()
}

impl Split {
    /// The steps in the form of a `tokenizer.json`.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let mut steps = Vec::new();
        if self.digits_alone {
            steps.push(json!({"type": "Digits", "individual_digits": true}));
        }
        let pattern = json!({"Regex": self.expression});
        steps.push(json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false}));
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
