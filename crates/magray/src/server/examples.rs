//! Examples of requests for the OpenAPI document: sent as they are, each is answered by any server with a model for it.
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
        "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({"messages": [{"role": "user", "content": "Where is the boat?"}], "max_tokens": 20})
        }
        "/v1/completions" => json!({"prompt": "The boat waits", "max_tokens": 20}),
        "/v1/evaluate" => json!({"text": first}),
        "/v1/responses" => json!({"input": "Where is the boat?", "max_output_tokens": 20}),
        "/api/chat" => {
            let messages = json!([{"role": "user", "content": "Where is the boat?"}]);
            json!({"messages": messages, "stream": false, "options": {"num_predict": 20}})
        }
        "/api/generate" => json!({"prompt": "The boat waits", "stream": false, "options": {"num_predict": 20}}),
        "/detokenize" => json!({"tokens": [10, 11, 12]}),
        "/api/show" => json!({"model": model}),
        "/v1/vector_stores/{vector_store_id}/search" => json!({"query": "Where is the boat?", "max_num_results": 3}),
        path if path.starts_with("/collections/") => return of_collection(path.rsplit("/points").next()?),
        "/v2/repository/index" => json!({}),
        path if path.starts_with("/v2/models/") => {
            json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": [first, second]}]})
        }
        "/mcp" => json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        _ => return None,
    })
}

/// The body of a request that asks for points, by what stands behind `/points` in its path.
fn of_collection(rest: &str) -> Option<Value> {
    let text = json!({"text": "Where is the boat?"});
    let query = json!({"query": {"nearest": text}, "limit": 3, "with_payload": true});
    let search = json!({"vector": text, "limit": 3});
    let like = json!({"positive": [1], "limit": 3});
    let near = json!({"target": 1, "context": [], "limit": 3});
    let grouped = |mut body: Value| {
        body["group_by"] = "author".into();
        body
    };
    Some(match rest {
        "" => json!({"ids": [1]}),
        "/scroll" => json!({"limit": 3, "with_payload": true}),
        "/count" => json!({"filter": {"must": [{"key": "author", "match": {"value": "Ann"}}]}}),
        "/query" => query,
        "/query/batch" => json!({ "searches": [query] }),
        "/query/groups" => grouped(query),
        "/search" => search,
        "/search/batch" => json!({ "searches": [search] }),
        "/search/groups" => grouped(search),
        "/search/matrix/pairs" | "/search/matrix/offsets" => json!({"sample": 10, "limit": 3}),
        "/recommend" => like,
        "/recommend/batch" => json!({ "searches": [like] }),
        "/recommend/groups" => grouped(like),
        "/discover" => near,
        "/discover/batch" => json!({ "searches": [near] }),
        path if path.ends_with("/facet") => json!({"key": "author"}),
        _ => return None,
    })
}

/// A part of a path: the organisation of a model, or its name. Without an organisation of its own, any will do.
pub(super) fn path_part(name: &str, path: &str, model: &str) -> Option<Value> {
    let (organisation, own) = model.rsplit_once('/').unwrap_or(("sentence-transformers", model));
    match name {
        "collection_name" | "vector_store_id" => Some("documents".into()),
        "file_id" => Some("file-0000000000000001".into()),
        "batch_id" => Some("vsfb_0000000000000001".into()),
        "id" | "version" => Some("1".into()),
        "organisation" => Some(organisation.into()),
        "model" if path.contains("{organisation}") => Some(own.into()),
        "model" => Some(model.into()),
        _ => None,
    }
}
