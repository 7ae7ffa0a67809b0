//! GGUF files, whole ones and broken ones, which must each end in the right error.

use proptest::prelude::*;

use super::{writer::Writer, *};

fn opened(bytes: &[u8]) -> Result<Gguf, WeightsError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Gguf::open(&path)
}

fn check_refused(bytes: &[u8], words: &[&str]) {
    let message = opened(bytes).unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

fn some_file() -> Writer {
    let mut file = Writer::default();
    file.text("general.architecture", "llama")
        .number("llama.block_count", 2)
        .float("llama.rope.freq_base", 10000.0)
        .flag("tokenizer.ggml.add_bos_token", true)
        .texts("tokenizer.ggml.tokens", &["a", "", "\u{4f60}"])
        .integers("tokenizer.ggml.token_type", &[1, 3, -1])
        .floats("tokenizer.ggml.scores", &[0.5, -1.0, 2.0])
        .flags("windows", &[true, false])
        .tensor("token_embd.weight", BlockFormat::Q8_0, &[2, 32], &[1; 68])
        .tensor("output_norm.weight", BlockFormat::F32, &[3], &[0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64]);
    file
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let file = opened(&some_file().bytes()).unwrap();
    assert_eq!(file.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(file.number("llama.block_count").unwrap(), Some(2));
    assert_eq!(file.float("llama.rope.freq_base").unwrap(), Some(10000.0));
    assert_eq!(file.flag("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(file.texts("tokenizer.ggml.tokens").unwrap().unwrap(), ["a", "", "\u{4f60}"]);
    assert_eq!(file.integers("tokenizer.ggml.token_type").unwrap().unwrap(), [1, 3, -1]);
    assert_eq!(file.floats("tokenizer.ggml.scores").unwrap().unwrap(), [0.5, -1.0, 2.0]);
    assert_eq!(file.flags("windows").unwrap().unwrap(), [true, false]);
    assert_eq!(file.number("none").unwrap(), None);
    assert_eq!(file.shape("token_embd.weight"), Some(&[2, 32][..]));
    assert_eq!(file.vector("output_norm.weight", 3).unwrap(), [1.0, 2.0, 3.0]);
    let matrix = file.matrix("token_embd.weight", 2, 32).unwrap();
    assert_eq!((matrix.format(), matrix.byte_len()), (BlockFormat::Q8_0, 68));
    assert!((0..matrix.rows()).all(|row| matrix.row(row).iter().all(|byte| *byte == 1)));
}

#[test]
fn values_of_other_types_and_tensors_of_other_shapes_are_named() {
    let file = opened(&some_file().bytes()).unwrap();
    let wrong = [
        file.number("general.architecture").unwrap_err(),
        file.text("llama.block_count").unwrap_err(),
        file.flag("llama.block_count").unwrap_err(),
        file.texts("tokenizer.ggml.scores").unwrap_err(),
        file.floats("tokenizer.ggml.tokens").unwrap_err(),
    ];
    for error in wrong {
        assert!(error.to_string().contains("is not "), "{error}");
    }
    let error = file.matrix("token_embd.weight", 32, 2).unwrap_err().to_string();
    assert!(error.contains("token_embd.weight") && error.contains("[2, 32]") && error.contains("[32, 2]"), "{error}");
    let error = file.vector("output_norms.weight", 3).unwrap_err().to_string();
    assert!(error.contains("nearest are output_norm.weight"), "{error}");
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let whole = some_file().bytes();
    for length in 0..whole.len() {
        let error = header::read(Path::new("f"), &whole[..length]).unwrap_err().to_string();
        assert!(
            error.contains("ends inside") || error.contains("cut off") || error.contains("GGUF"),
            "{length}: {error}"
        );
    }
    header::read(Path::new("f"), &whole).unwrap();
}

#[test]
fn lies_are_refused_by_name() {
    let with = |change: fn(&mut Writer) -> &mut Writer| {
        let mut file = some_file();
        change(&mut file);
        file.bytes()
    };
    check_refused(b"GGML", &["does not begin with 'GGUF'"]);
    check_refused(b"GGUF\x01\0\0\0", &["version 1"]);
    check_refused(b"GGUF\0\0\0\x03", &["big-endian"]);
    check_refused(&[&b"GGUF\x03\0\0\0"[..], &[255; 16]].concat(), &["18446744073709551615 tensors"]);
    check_refused(&with(|f| f.number("llama.block_count", 3)), &["'llama.block_count' twice"]);
    check_refused(&with(|f| f.number("general.alignment", 24)), &["general.alignment"]);
    check_refused(&with(|f| f.nested("nest")), &["'nest'", "array of arrays"]);
    check_refused(&with(|f| f.tensor_of("q", 16, &[256], &[0; 66])), &["'q'", "IQ2_XXS", "Q4_0"]);
    check_refused(&with(|f| f.tensor_of("q", 99, &[256], &[0; 66])), &["number 99"]);
    check_refused(&with(|f| f.tensor("q", BlockFormat::Q4K, &[128], &[0; 72])), &["'q'", "rows of 128"]);
    check_refused(&with(|f| f.tensor("q", BlockFormat::F32, &[0, 4], &[])), &["dimension of 0"]);
    check_refused(&with(|f| f.tensor("q", BlockFormat::F32, &[1; 5], &[0; 4])), &["5 dimensions"]);
    check_refused(&with(|f| f.at("q", 0, &[1 << 31, 1 << 31, 1 << 31], 0)), &["more bytes than"]);
    check_refused(&with(|f| f.at("q", 0, &[1 << 20], 0)), &["'q'", "cut off"]);
    check_refused(&with(|f| f.at("q", 0, &[1], u64::MAX - 31)), &["'q'", "cut off"]);
    check_refused(&with(|f| f.at("q", 0, &[1], 3)), &["no multiple of 32"]);
    check_refused(&with(|f| f.at("q", 0, &[1], 0)), &["'q'", "overlap"]);
    check_refused(&with(|f| f.at("output_norm.weight", 0, &[1], 0)), &["'output_norm.weight' twice"]);
}

proptest! {
    #[test]
    fn a_changed_byte_never_breaks_the_reader(at in 0usize..1000, byte: u8) {
        let mut bytes = some_file().bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(header) = header::read(Path::new("f"), &bytes) {
            for entry in header.tensors.values() {
                prop_assert!(entry.range.end <= bytes.len());
            }
        }
    }
}
