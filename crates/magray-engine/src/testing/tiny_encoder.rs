//! An embedding model of random weights that reads any text letter by letter, as a folder: for demonstrations without a pull.
//! Its vectors mean nothing, and are always the same.

use super::tiny_weights;
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;

const HIDDEN: usize = 64;
const FFN: usize = 128;
const LAYERS: usize = 2;
const HEADS: usize = 4;
/// The longest text, in tokens.
const CONTEXT: usize = 256;
const SPECIAL: [&str; 4] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];

/// Writes the files of the model of this seed into a folder.
pub fn write(folder: &Path, seed: u64) -> io::Result<()> {
    let vocab = vocabulary();
    let config = json!({
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "vocab_size": vocab.len(), "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT, "type_vocab_size": 2, "pad_token_id": 0,
    });
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]);
    let pooling = json!({"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": true});
    std::fs::create_dir_all(folder.join("1_Pooling"))?;
    let files = [
        ("config.json", config),
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", json!({"max_seq_length": CONTEXT, "do_lower_case": false})),
        ("tokenizer.json", tokenizer(&vocab)),
    ];
    for (name, content) in files {
        std::fs::write(folder.join(name), content.to_string())?;
    }
    tiny_weights::write(folder, &shapes(vocab.len()), seed)
}

/// Special tokens, then each printable character alone and within a word.
fn vocabulary() -> Vec<String> {
    let characters = || (b'!'..=b'~').map(char::from).filter(|character| !character.is_ascii_uppercase());
    let special = SPECIAL.into_iter().map(str::to_owned);
    let alone = characters().map(String::from);
    special.chain(alone).chain(characters().map(|character| format!("##{character}"))).collect()
}

fn shapes(vocab: usize) -> Vec<(String, Vec<usize>)> {
    let mut shapes = Vec::new();
    let mut add = |name: String, shape: &[usize]| shapes.push((name, shape.to_vec()));
    for (name, rows) in [("word", vocab), ("position", CONTEXT), ("token_type", 2)] {
        add(format!("embeddings.{name}_embeddings.weight"), &[rows, HIDDEN]);
    }
    add("embeddings.LayerNorm.weight".to_owned(), &[HIDDEN]);
    add("embeddings.LayerNorm.bias".to_owned(), &[HIDDEN]);
    for layer in 0..LAYERS {
        let products = [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", FFN, HIDDEN),
            ("output.dense", HIDDEN, FFN),
        ];
        for (part, rows, columns) in products {
            add(format!("encoder.layer.{layer}.{part}.weight"), &[rows, columns]);
            add(format!("encoder.layer.{layer}.{part}.bias"), &[rows]);
        }
        for part in ["attention.output", "output"] {
            add(format!("encoder.layer.{layer}.{part}.LayerNorm.weight"), &[HIDDEN]);
            add(format!("encoder.layer.{layer}.{part}.LayerNorm.bias"), &[HIDDEN]);
        }
    }
    shapes
}

fn tokenizer(vocab: &[String]) -> Value {
    let ids: Map<String, Value> = (0_u32..).zip(vocab).map(|(id, token)| (token.clone(), id.into())).collect();
    let added: Vec<Value> = (0_u32..).zip(SPECIAL).map(|(id, token)| special(id, token)).collect();
    let (begin, end) = (json!({"SpecialToken": {"id": "[CLS]", "type_id": 0}}), "[SEP]");
    let sequence = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    let ending = |kind: u32| json!({"SpecialToken": {"id": end, "type_id": kind}});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": true,
            "lowercase": true,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, sequence("A", 0), ending(0)],
            "pair": [begin, sequence("A", 0), ending(0), sequence("B", 1), ending(1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    })
}

fn special(id: u32, token: &str) -> Value {
    json!({
        "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineModel, EngineOptions, ModelSource};
    use crate::{Precision, PrecisionChoice};

    #[test]
    fn the_model_opens_and_tells_texts_apart() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 1).unwrap();
        let mut options = EngineOptions::on_cpu(vec![EngineModel::from(ModelSource::Folder(folder.path().to_owned()))]);
        options.encoder.precision = PrecisionChoice::Exactly(Precision::F32);
        let engine = Engine::start(options).unwrap();
        let texts = ["A cat sits by the river.", "a cat sits by the river.", "The boat waits, twice?", "naïve 7"];
        let rows = engine.process(engine.read(0, &texts, None).unwrap()).unwrap().values;
        engine.shut_down();
        let row = |at: usize| &rows[at * HIDDEN..][..HIDDEN];
        let cosine = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        assert_eq!(row(0), row(1), "case does not count");
        assert!((cosine(row(0), row(0)) - 1.0).abs() < 1e-4);
        assert!(cosine(row(0), row(2)) < 0.999 && cosine(row(2), row(3)) < 0.999);
    }
}
