//! Well-known models by the names that people use, with the organisations that publish them.
//! Holds only models of architectures that are supported.

/// The repository of a short name such as `bge-small-en-v1.5`.
pub(super) fn repo_of(short: &str) -> Option<String> {
    let known = known_models().find(|(_, name)| name.eq_ignore_ascii_case(short));
    known.map(|(organisation, name)| format!("{organisation}/{name}"))
}

/// Organisations and names of well-known models.
pub fn known_models() -> impl Iterator<Item = (&'static str, &'static str)> {
    KNOWN.iter().flat_map(|(organisation, names)| names.iter().map(move |name| (*organisation, *name)))
}

const KNOWN: &[(&str, &[&str])] = &[
    (
        "sentence-transformers",
        &[
            "all-MiniLM-L6-v2",
            "all-MiniLM-L6-v1",
            "all-MiniLM-L12-v2",
            "all-MiniLM-L12-v1",
            "all-mpnet-base-v2",
            "all-mpnet-base-v1",
            "all-distilroberta-v1",
            "all-roberta-large-v1",
            "multi-qa-MiniLM-L6-cos-v1",
            "multi-qa-MiniLM-L6-dot-v1",
            "multi-qa-distilbert-cos-v1",
            "multi-qa-mpnet-base-cos-v1",
            "multi-qa-mpnet-base-dot-v1",
            "paraphrase-MiniLM-L3-v2",
            "paraphrase-MiniLM-L6-v2",
            "paraphrase-mpnet-base-v2",
            "paraphrase-multilingual-MiniLM-L12-v2",
            "paraphrase-multilingual-mpnet-base-v2",
            "distiluse-base-multilingual-cased-v2",
            "msmarco-distilbert-base-tas-b",
            "msmarco-MiniLM-L6-cos-v5",
            "LaBSE",
        ],
    ),
    (
        "BAAI",
        &[
            "bge-small-en-v1.5",
            "bge-base-en-v1.5",
            "bge-large-en-v1.5",
            "bge-small-en",
            "bge-base-en",
            "bge-large-en",
            "bge-small-zh-v1.5",
            "bge-base-zh-v1.5",
            "bge-large-zh-v1.5",
            "bge-m3",
            "bge-reranker-base",
            "bge-reranker-large",
            "bge-reranker-v2-m3",
        ],
    ),
    (
        "intfloat",
        &[
            "e5-small",
            "e5-base",
            "e5-large",
            "e5-small-v2",
            "e5-base-v2",
            "e5-large-v2",
            "multilingual-e5-small",
            "multilingual-e5-base",
            "multilingual-e5-large",
            "multilingual-e5-large-instruct",
        ],
    ),
    ("thenlper", &["gte-small", "gte-base", "gte-large"]),
    (
        "cross-encoder",
        &[
            "ms-marco-MiniLM-L2-v2",
            "ms-marco-MiniLM-L4-v2",
            "ms-marco-MiniLM-L6-v2",
            "ms-marco-MiniLM-L12-v2",
            "ms-marco-TinyBERT-L2-v2",
            "mmarco-mMiniLMv2-L12-H384-v1",
            "stsb-roberta-base",
            "stsb-roberta-large",
            "stsb-distilroberta-base",
        ],
    ),
    ("mixedbread-ai", &["mxbai-embed-large-v1"]),
    (
        "Snowflake",
        &[
            "snowflake-arctic-embed-xs",
            "snowflake-arctic-embed-s",
            "snowflake-arctic-embed-m",
            "snowflake-arctic-embed-l",
            "snowflake-arctic-embed-l-v2.0",
        ],
    ),
    ("WhereIsAI", &["UAE-Large-V1"]),
    (
        "ibm-granite",
        &[
            "granite-embedding-30m-english",
            "granite-embedding-125m-english",
            "granite-embedding-107m-multilingual",
            "granite-embedding-278m-multilingual",
        ],
    ),
    ("facebook", &["contriever", "contriever-msmarco"]),
    ("HuggingFaceTB", &["SmolLM2-135M-Instruct", "SmolLM2-360M-Instruct", "SmolLM2-1.7B-Instruct"]),
    (
        "Qwen",
        &[
            "Qwen2.5-0.5B-Instruct",
            "Qwen2.5-1.5B-Instruct",
            "Qwen2.5-3B-Instruct",
            "Qwen2.5-7B-Instruct",
            "Qwen3-0.6B",
            "Qwen3-1.7B",
            "Qwen3-4B",
            "Qwen3-8B",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_short_name_means_one_model_in_any_case() {
        let mut seen = HashSet::new();
        for (organisation, name) in known_models() {
            assert!(seen.insert(name.to_ascii_lowercase()), "{name} twice");
            assert_eq!(repo_of(&name.to_ascii_uppercase()), Some(format!("{organisation}/{name}")));
        }
        assert_eq!(repo_of("bge-small-en-v1.5").as_deref(), Some("BAAI/bge-small-en-v1.5"));
        assert_eq!(repo_of("nothing"), None);
    }
}
