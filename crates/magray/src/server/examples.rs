//! Examples of requests for the OpenAPI document: sent as they are, each is answered by any server with a model that embeds.
//! Has none for routes that change something.

use serde_json::{Value, json};

/// The body of a request.
pub(super) fn body(path: &str, model: &str) -> Option<Value> {
    let (first, second) = ("A cat sits by the river.", "The boat waits under the bridge.");
    Some(match path {
        "/v1/embeddings" | "/api/embed" => json!({"input": [first, second]}),
        "/api/embeddings" => json!({"prompt": first}),
        "/v1/embed" | "/v2/embed" => {
            json!({"texts": [first, second], "input_type": "search_document", "embedding_types": ["float", "int8"]})
        }
        "/v1/rerank" | "/v2/rerank" => {
            json!({"query": "Where is the boat?", "documents": [first, second], "top_n": 2})
        }
        "/" | "/embed" | "/embed_all" => json!({"inputs": [first, second]}),
        "/rerank" => json!({"query": "Where is the boat?", "texts": [first, second]}),
        "/similarity" => json!({"inputs": {"source_sentence": "Where is the boat?", "sentences": [first, second]}}),
        "/predict" | "/tokenize" => json!({"inputs": first}),
        "/decode" => json!({"ids": [10, 11, 12]}),
        "/api/show" => json!({"model": model}),
        "/mcp" => json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        _ => return None,
    })
}

/// A part of a path: the organisation of a model, or its name. Without an organisation of its own, any will do.
pub(super) fn path_part(name: &str, path: &str, model: &str) -> Option<Value> {
    let (organisation, own) = model.rsplit_once('/').unwrap_or(("sentence-transformers", model));
    match name {
        "organisation" => Some(organisation.into()),
        "model" if path.contains("{organisation}") => Some(own.into()),
        "model" => Some(model.into()),
        _ => None,
    }
}
