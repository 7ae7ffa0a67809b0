//! Writes a model of random weights as files, in the form in which models are published.
//! Never overwrites another model; what is half-written does not have its name yet.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use magray_core::SplitMix64;
use magray_engine::EncoderShape;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

const WEIGHTS: &str = "model.safetensors";
/// Tensors begin at varying offsets into one block of noise: random enough, and as fast as the disk.
const NOISE_NUMBERS: usize = 4 << 20;

pub(super) fn write(folder: &Path, shape: &EncoderShape) -> Result<(), Failure> {
    let failed = |reason: io::Error| Failure::File { path: folder.to_owned(), reason };
    fs::create_dir_all(folder).map_err(failed)?;
    let config = config(shape);
    let tensors = tensors(shape);
    match fs::read(folder.join("config.json")) {
        Ok(found) if found != config.as_bytes() => {
            let folder = folder.display();
            return Err(Failure::Usage(format!("{folder} holds another model: name an empty folder")));
        }
        Ok(_) if is_whole(folder, &tensors) => return Ok(()),
        _ => {}
    }
    fs::write(folder.join("tokenizer.json"), tokenizer()).map_err(failed)?;
    write_weights(folder, &tensors).map_err(failed)?;
    // It is a model only once this is there.
    fs::write(folder.join("config.json"), config).map_err(failed)
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
}

impl Tensor {
    fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// Norm gains stand around 1 as trained ones do; all else around 0.
    fn is_gain(&self) -> bool {
        self.name.ends_with("LayerNorm.weight")
    }
}

fn tensors(shape: &EncoderShape) -> Vec<Tensor> {
    let EncoderShape { vocab, hidden, layers, ffn, positions, .. } = *shape;
    let tensor = |name: String, shape: &[usize]| Tensor { name, shape: shape.to_vec() };
    let mut all = vec![
        tensor("embeddings.word_embeddings.weight".to_owned(), &[vocab, hidden]),
        tensor("embeddings.position_embeddings.weight".to_owned(), &[positions, hidden]),
        tensor("embeddings.token_type_embeddings.weight".to_owned(), &[2, hidden]),
        tensor("embeddings.LayerNorm.weight".to_owned(), &[hidden]),
        tensor("embeddings.LayerNorm.bias".to_owned(), &[hidden]),
    ];
    for layer in 0..layers {
        let products = [
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", ffn, hidden),
            ("output.dense", hidden, ffn),
        ];
        let name = |part: &str, which: &str| format!("encoder.layer.{layer}.{part}.{which}");
        for (part, outputs, inputs) in products {
            all.push(tensor(name(part, "weight"), &[outputs, inputs]));
            all.push(tensor(name(part, "bias"), &[outputs]));
        }
        for part in ["attention.output.LayerNorm", "output.LayerNorm"] {
            all.push(tensor(name(part, "weight"), &[hidden]));
            all.push(tensor(name(part, "bias"), &[hidden]));
        }
    }
    all
}

fn config(shape: &EncoderShape) -> String {
    let config = json!({
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.positions,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "dtype": "bfloat16",
    });
    format!("{config:#}\n")
}

/// A minimal tokenizer: requests carry token ids.
fn tokenizer() -> String {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
    let vocab: Map<String, Value> =
        special.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                        "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2] },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": vocab },
    });
    format!("{tokenizer}\n")
}

/// The header of a safetensors file, with its length before it.
fn header(tensors: &[Tensor]) -> Vec<u8> {
    let mut at = 0;
    let mut entries = Map::new();
    for tensor in tensors {
        let end = at + 2 * tensor.numbers() as u64;
        entries
            .insert(tensor.name.clone(), json!({ "dtype": "BF16", "shape": tensor.shape, "data_offsets": [at, end] }));
        at = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    // The numbers begin at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

fn is_whole(folder: &Path, tensors: &[Tensor]) -> bool {
    let numbers: usize = tensors.iter().map(Tensor::numbers).sum();
    let expected = header(tensors).len() as u64 + 2 * numbers as u64;
    fs::metadata(folder.join(WEIGHTS)).is_ok_and(|found| found.len() == expected)
}

fn write_weights(folder: &Path, tensors: &[Tensor]) -> io::Result<()> {
    let path = folder.join(format!("{WEIGHTS}.part"));
    let mut file = BufWriter::with_capacity(8 << 20, File::create(&path)?);
    let written = file.write_all(&header(tensors)).and_then(|()| write_numbers(&mut file, tensors));
    match written.and_then(|()| file.flush()) {
        Ok(()) => fs::rename(&path, folder.join(WEIGHTS)),
        Err(error) => {
            // The first error is the one to tell.
            let _ = fs::remove_file(&path);
            Err(error)
        }
    }
}

fn write_numbers(file: &mut impl Write, tensors: &[Tensor]) -> io::Result<()> {
    let block = |centre: f32, seed: u64| -> Vec<u8> {
        let mut chance = SplitMix64::new(seed);
        let number = |_| {
            let number = centre + (chance.unit() as f32 - 0.5) * 0.14;
            // The upper half of a float is its bf16.
            ((number.to_bits() >> 16) as u16).to_le_bytes()
        };
        (0..NOISE_NUMBERS).flat_map(number).collect()
    };
    let (noise, gains) = (block(0.0, 1), block(1.0, 2));
    let mut chance = SplitMix64::new(3);
    for tensor in tensors {
        let block = if tensor.is_gain() { &gains } else { &noise };
        let mut left = 2 * tensor.numbers();
        let mut start = 2 * chance.below(NOISE_NUMBERS);
        while left > 0 {
            let count = left.min(block.len() - start);
            file.write_all(&block[start..start + count])?;
            left -= count;
            start = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_engine::{
        DeviceName, EncoderOptions, SingleDevice,
        engine::{ModelSource, Work},
    };

    #[test]
    fn what_is_written_can_be_loaded_and_computes() {
        let folder = tempfile::tempdir().unwrap();
        let shape: EncoderShape = "tiny".parse().unwrap();
        write(folder.path(), &shape).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
        let options = EncoderOptions { threads: Some(1), ..EncoderOptions::default() };
        let source = ModelSource::Folder(folder.path().to_owned());
        let open = || SingleDevice::open(&source, DeviceName::Cpu, &options);
        let mut model = open().unwrap();
        assert_eq!(model.spec().shape, shape);
        let rows = model.run(&Work::from_ids(0, vec![vec![1, 2, 3], vec![7]])).unwrap();
        assert!(rows.iter().all(|value| value.is_finite()) && rows[0] != rows[64]);

        // It is not written again where it is whole, and is where it is not.
        let file = folder.path().join(WEIGHTS);
        let written = fs::metadata(&file).unwrap().modified().unwrap();
        write(folder.path(), &shape).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), written);
        fs::write(&file, "half").unwrap();
        write(folder.path(), &shape).unwrap();
        assert!(open().is_ok());
        let other = "minilm-l6".parse().unwrap();
        assert!(write(folder.path(), &other).unwrap_err().to_string().contains("holds another model"));
        assert!(open().is_ok(), "it was overwritten");
    }
}
