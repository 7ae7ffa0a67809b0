//! Whatever a `tokenizer.json` holds: it is read or refused, and texts become no more tokens than the model reads.
#![no_main]

#[path = "../../crates/magray-engine/src/bounded_file.rs"]
mod bounded_file;
#[path = "../../crates/magray-engine/src/onnx_graph.rs"]
mod onnx_graph;
#[path = "../../crates/magray-engine/src/pause.rs"]
#[expect(dead_code, reason = "nothing passes a fuzzed text")]
mod pause;
#[path = "../../crates/magray-engine/src/spec/mod.rs"]
#[expect(dead_code, unused_imports, reason = "tokenizers need little of what a model says of itself")]
mod spec;
#[path = "../../crates/magray-engine/src/tokenize/mod.rs"]
#[expect(dead_code, unused_imports, reason = "many texts at once are not fuzzed")]
mod tokenize;
#[path = "../../crates/magray-engine/src/weights/error.rs"]
#[expect(dead_code, reason = "no weights are read")]
mod weights_error;

/// Where models' descriptions look for it.
mod weights {
    pub use crate::weights_error::WeightsError;
}

/// Files of graphs, read whole: no fuzzed folder has one.
mod graph_file {
    pub(crate) fn open(file: &std::path::Path) -> Result<crate::onnx_graph::Graph, crate::onnx_graph::GraphError> {
        crate::onnx_graph::Graph::read(&std::fs::read(file)?)
    }
}

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;
use tokenize::Tokenizer;

const TOKENS_MAX: usize = 16;
const TEXTS: [&str; 5] = [
    "",
    "the quick brown fox",
    "un\u{301} caf\u{e9} \u{4f60}\u{597d}",
    "a\0b [CLS] \u{1f600}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// A folder of this process; a fuzzer ends without removing anything, so that whoever starts it says where.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("tokenizer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
});

fuzz_target!(|json: &[u8]| {
    std::fs::write(FOLDER.join("tokenizer.json"), json).expect("a file");
    let tokenizer = match Tokenizer::open(&FOLDER, TOKENS_MAX) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for text in TEXTS {
        for encoded in [tokenizer.encode(text), tokenizer.encode_pair(text, TEXTS[1])].into_iter().flatten() {
            assert!(encoded.ids.len() <= TOKENS_MAX);
            assert_eq!(encoded.ids.len(), encoded.type_ids.len());
        }
    }
});
