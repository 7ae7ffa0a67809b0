//! Every route in one table: method, path, what it asks of its callers, its API, its handler.
//! Checks, error shapes, metrics labels and the OpenAPI document derive from it; a path that is not in it gets 404.

use http::Method;
use utoipa_axum::{router::UtoipaMethodRouter, routes};

use super::{
    apis::{
        admin, anthropic, cohere, evaluate, faults, files, gpu, health, llama_cpp, models, ollama, ollama_chat,
        open_inference, openai, openai_chat,
        qdrant::{collections, matrix, points, queries, snapshots},
        responses, tei, tei_embed_all, tei_tokenize, ui,
        vector_stores::{batches, files as store_files, search, stores},
    },
    app::App,
    errors::Shape,
    keys::Access,
    mcp,
};

pub(super) struct Route {
    pub(super) method: Method,
    /// As axum and OpenAPI write it: `{name}` is a segment that callers choose.
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) api: Api,
    /// The handler with its description, whose own path is empty.
    pub(super) handler: fn() -> UtoipaMethodRouter<App>,
}

impl Route {
    /// Whether only a language model answers it.
    pub(super) fn needs_generator(&self) -> bool {
        self.is_generating() || ["/v1/messages/count_tokens", "/detokenize", "/props", "/slots"].contains(&self.path)
    }

    /// Whether its answers take as long as a model has to say something: they have a time to begin in, and none to end.
    pub(super) fn is_generating(&self) -> bool {
        GENERATING.contains(&self.path)
    }

    /// Whether it uses the collections on the disk.
    pub(super) fn is_of_collections(&self) -> bool {
        let of_stores = ["/v1/files", "/v1/vector_stores", "/ui/collections"];
        self.api == Api::Qdrant || of_stores.iter().any(|start| self.path.starts_with(start))
    }
}

const GENERATING: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/evaluate",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
];

/// The API that a route belongs to: it decides the shape of errors and the section of the OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    OpenAi,
    Tei,
    Cohere,
    Anthropic,
    Ollama,
    Qdrant,
    /// The v2 protocol of Triton and KServe.
    OpenInference,
    Mcp,
    Gpu,
    Admin,
    Health,
    /// What the page of the server asks; in no document.
    Ui,
    /// The pages of the document, and paths that are in no table.
    Docs,
}

macro_rules! table {
    ($($method:ident $path:literal $access:ident $api:ident => $module:ident :: $handler:ident;)*) => {
        pub(super) static ROUTES: &[Route] = &[$(Route {
            method: Method::$method,
            path: $path,
            access: Access::$access,
            api: Api::$api,
            handler: || routes!($module::$handler),
        }),*];
    };
}

table! {
    POST "/v1/embeddings"                    Compute OpenAi => openai::embeddings;
    POST "/v1/chat/completions"              Compute OpenAi => openai_chat::chat;
    POST "/v1/completions"                   Compute OpenAi => openai_chat::completions;
    POST "/v1/responses"                     Compute OpenAi => responses::responses;
    POST "/v1/rerank"                        Compute OpenAi => openai::rerank;
    POST "/v1/evaluate"                     Compute OpenAi => evaluate::evaluate;
    GET  "/v1/models"                        Read    OpenAi => openai::models;
    GET  "/v1/models/{model}"                Read    OpenAi => openai::model;
    GET  "/v1/models/{organisation}/{model}" Read    OpenAi => openai::hub_model;
    GET  "/v1/files"                         Read    OpenAi => files::list;
    POST "/v1/files"                         Change  OpenAi => files::upload;
    GET  "/v1/files/{file_id}"               Read    OpenAi => files::retrieve;
    DELETE "/v1/files/{file_id}"             Change  OpenAi => files::delete;
    GET  "/v1/files/{file_id}/content"       Read    OpenAi => files::content;
    GET  "/v1/vector_stores"                 Read    OpenAi => stores::list;
    POST "/v1/vector_stores"                 Change  OpenAi => stores::create;
    GET  "/v1/vector_stores/{vector_store_id}"    Read   OpenAi => stores::retrieve;
    POST "/v1/vector_stores/{vector_store_id}"    Change OpenAi => stores::modify;
    DELETE "/v1/vector_stores/{vector_store_id}"  Change OpenAi => stores::delete;
    POST "/v1/vector_stores/{vector_store_id}/search" Compute OpenAi => search::search;
    GET  "/v1/vector_stores/{vector_store_id}/files"  Read    OpenAi => store_files::list;
    POST "/v1/vector_stores/{vector_store_id}/files"  Change  OpenAi => store_files::attach;
    GET  "/v1/vector_stores/{vector_store_id}/files/{file_id}" Read OpenAi => store_files::retrieve;
    POST "/v1/vector_stores/{vector_store_id}/files/{file_id}" Change OpenAi => store_files::update;
    DELETE "/v1/vector_stores/{vector_store_id}/files/{file_id}" Change OpenAi => store_files::delete;
    GET  "/v1/vector_stores/{vector_store_id}/files/{file_id}/content" Read OpenAi => store_files::content;
    POST "/v1/vector_stores/{vector_store_id}/file_batches" Change OpenAi => batches::create;
    GET  "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}" Read OpenAi => batches::retrieve;
    POST "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel" Change OpenAi => batches::cancel;
    GET  "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files" Read OpenAi => batches::list;
    POST "/"                                 Compute Tei    => tei::root;
    POST "/embed"                            Compute Tei    => tei::embed;
    POST "/embed_all"                        Compute Tei    => tei_embed_all::embed_all;
    POST "/rerank"                           Compute Tei    => tei::rerank;
    POST "/predict"                          Compute Tei    => tei::predict;
    POST "/similarity"                       Compute Tei    => tei::similarity;
    POST "/tokenize"                         Read    Tei    => tei_tokenize::tokenize;
    POST "/detokenize"                       Read    OpenAi => llama_cpp::detokenize;
    GET  "/props"                            Read    OpenAi => llama_cpp::props;
    GET  "/slots"                            Read    OpenAi => llama_cpp::slots;
    POST "/decode"                           Read    Tei    => tei_tokenize::decode;
    GET  "/info"                             Read    Tei    => tei_tokenize::info;
    POST "/v1/embed"                         Compute Cohere => cohere::embed_v1;
    POST "/v2/embed"                         Compute Cohere => cohere::embed;
    POST "/v2/rerank"                        Compute Cohere => cohere::rerank;
    POST "/v1/messages"                      Compute Anthropic => anthropic::messages;
    POST "/v1/messages/count_tokens"         Read    Anthropic => anthropic::count_tokens;
    POST "/api/embed"                        Compute Ollama => ollama::embed;
    POST "/api/embeddings"                   Compute Ollama => ollama::embeddings;
    POST "/api/chat"                         Compute Ollama => ollama_chat::chat;
    POST "/api/generate"                     Compute Ollama => ollama_chat::generate;
    GET  "/api/tags"                         Read    Ollama => ollama::tags;
    GET  "/api/ps"                           Read    Ollama => ollama::ps;
    POST "/api/pull"                         Change  Ollama => models::pull;
    DELETE "/api/delete"                     Change  Ollama => models::delete;
    POST "/api/show"                         Read    Ollama => ollama::show;
    GET  "/api/version"                      Read    Ollama => ollama::version;
    GET  "/"                                 Read    Ollama => ollama::running;
    GET  "/collections"                      Read    Qdrant => collections::list;
    POST "/collections/aliases"              Change  Qdrant => collections::change_aliases;
    GET  "/aliases"                          Read    Qdrant => collections::aliases;
    GET  "/collections/{collection_name}"    Read    Qdrant => collections::info;
    PUT  "/collections/{collection_name}"    Change  Qdrant => collections::create;
    PATCH "/collections/{collection_name}"   Change  Qdrant => collections::update;
    DELETE "/collections/{collection_name}"  Change  Qdrant => collections::delete;
    GET  "/collections/{collection_name}/exists"  Read Qdrant => collections::exists;
    GET  "/collections/{collection_name}/aliases" Read Qdrant => collections::collection_aliases;
    PUT  "/collections/{collection_name}/index"   Change Qdrant => collections::create_index;
    DELETE "/collections/{collection_name}/index/{field_name}" Change Qdrant => collections::delete_index;
    PUT  "/collections/{collection_name}/vectors/{vector_name}" Change Qdrant => collections::create_vector;
    DELETE "/collections/{collection_name}/vectors/{vector_name}" Change Qdrant => collections::delete_vector;
    POST "/collections/{collection_name}/points"  Read Qdrant => points::retrieve;
    PUT  "/collections/{collection_name}/points"  Change Qdrant => points::upsert;
    GET  "/collections/{collection_name}/points/{id}"    Read Qdrant => points::point;
    POST "/collections/{collection_name}/points/delete"  Change Qdrant => points::delete;
    POST "/collections/{collection_name}/points/payload" Change Qdrant => points::set_payload;
    PUT  "/collections/{collection_name}/points/payload" Change Qdrant => points::overwrite_payload;
    POST "/collections/{collection_name}/points/payload/delete" Change Qdrant => points::delete_payload;
    POST "/collections/{collection_name}/points/payload/clear"  Change Qdrant => points::clear_payload;
    PUT  "/collections/{collection_name}/points/vectors" Change Qdrant => points::update_vectors;
    POST "/collections/{collection_name}/points/vectors/delete" Change Qdrant => points::delete_vectors;
    POST "/collections/{collection_name}/points/batch"   Change Qdrant => points::batch;
    POST "/collections/{collection_name}/points/scroll"  Read Qdrant => points::scroll;
    POST "/collections/{collection_name}/points/count"   Read Qdrant => points::count;
    POST "/collections/{collection_name}/facet"          Read Qdrant => points::facet;
    POST "/collections/{collection_name}/points/query"        Compute Qdrant => queries::query;
    POST "/collections/{collection_name}/points/query/batch"  Compute Qdrant => queries::query_batch;
    POST "/collections/{collection_name}/points/query/groups" Compute Qdrant => queries::query_groups;
    POST "/collections/{collection_name}/points/search"        Compute Qdrant => queries::search;
    POST "/collections/{collection_name}/points/search/batch"  Compute Qdrant => queries::search_batch;
    POST "/collections/{collection_name}/points/search/groups" Compute Qdrant => queries::search_groups;
    POST "/collections/{collection_name}/points/recommend"        Compute Qdrant => queries::recommend;
    POST "/collections/{collection_name}/points/recommend/batch"  Compute Qdrant => queries::recommend_batch;
    POST "/collections/{collection_name}/points/recommend/groups" Compute Qdrant => queries::recommend_groups;
    POST "/collections/{collection_name}/points/discover"       Compute Qdrant => queries::discover;
    POST "/collections/{collection_name}/points/discover/batch" Compute Qdrant => queries::discover_batch;
    POST "/collections/{collection_name}/points/search/matrix/pairs"   Read Qdrant => matrix::pairs;
    POST "/collections/{collection_name}/points/search/matrix/offsets" Read Qdrant => matrix::offsets;
    GET  "/collections/{collection_name}/snapshots"         Read Qdrant => snapshots::list;
    POST "/collections/{collection_name}/snapshots"         Change Qdrant => snapshots::create;
    PUT  "/collections/{collection_name}/snapshots/recover" Change Qdrant => snapshots::recover;
    DELETE "/collections/{collection_name}/snapshots/{snapshot_name}" Change Qdrant => snapshots::delete;
    GET  "/v2"                               Read    OpenInference => open_inference::server;
    GET  "/v2/health/live"                   Open    OpenInference => open_inference::live;
    GET  "/v2/health/ready"                  Open    OpenInference => open_inference::ready;
    POST "/v2/repository/index"              Read    OpenInference => open_inference::index;
    GET  "/v2/models/{model}"                Read    OpenInference => open_inference::model;
    GET  "/v2/models/{model}/ready"          Read    OpenInference => open_inference::model_ready;
    GET  "/v2/models/{model}/config"         Read    OpenInference => open_inference::config;
    POST "/v2/models/{model}/infer"          Compute OpenInference => open_inference::infer;
    GET  "/v2/models/{model}/versions/{version}"        Read    OpenInference => open_inference::version;
    GET  "/v2/models/{model}/versions/{version}/ready"  Read    OpenInference => open_inference::version_ready;
    GET  "/v2/models/{model}/versions/{version}/config" Read    OpenInference => open_inference::version_config;
    POST "/v2/models/{model}/versions/{version}/infer"  Compute OpenInference => open_inference::version_infer;
    GET  "/v2/models/{organisation}/{model}"        Read    OpenInference => open_inference::hub_model;
    GET  "/v2/models/{organisation}/{model}/ready"  Read    OpenInference => open_inference::hub_model_ready;
    GET  "/v2/models/{organisation}/{model}/config" Read    OpenInference => open_inference::hub_config;
    POST "/v2/models/{organisation}/{model}/infer"  Compute OpenInference => open_inference::hub_infer;
    POST "/mcp"                              Read    Mcp    => mcp::call;
    GET  "/gpu/status"                       Read    Gpu    => gpu::status;
    GET  "/gpu/devices"                      Read    Gpu    => gpu::devices;
    POST "/gpu/offload"                      Change  Gpu    => gpu::offload;
    POST "/gpu/release"                      Change  Gpu    => gpu::release;
    POST "/gpu/preheat"                      Change  Gpu    => gpu::preheat;
    POST "/gpu/priority"                     Change  Gpu    => gpu::priority;
    POST "/gpu/pin"                          Change  Gpu    => gpu::pin;
    POST "/gpu/timeout"                      Change  Gpu    => gpu::timeout;
    POST "/gpu/cache/clear"                  Change  Gpu    => gpu::clear_cache;
    POST "/models/load"                      Change  Admin  => models::load;
    POST "/models/unload"                    Change  Admin  => models::unload;
    POST "/models/alias"                     Change  Admin  => models::alias;
    POST "/admin/reload"                     Change  Admin  => admin::reload;
    GET  "/health"                           Open    Health => health::health;
    GET  "/health/live"                      Open    Health => health::live;
    GET  "/ping"                             Open    Health => health::ping;
    GET  "/healthz"                          Open    Health => health::healthz;
    GET  "/metrics"                          Read    Health => health::metrics;
    GET  "/ui/features"                      Open    Ui     => ui::features;
    GET  "/ui/state"                         Read    Ui     => ui::state;
    GET  "/ui/events"                        Read    Ui     => ui::events;
    GET  "/ui/collections/{collection_name}/map"    Read Ui => ui::map;
    GET  "/ui/collections/{collection_name}/values" Read Ui => ui::values;
}

/// Whether there is such a path.
pub(super) fn has(path: &str) -> bool {
    ROUTES.iter().any(|route| route.path == path)
}

/// What only the server of a demonstration has.
pub(super) static DEMO_ROUTES: &[Route] = &[Route {
    method: Method::POST,
    path: "/ui/faults",
    access: Access::Change,
    api: Api::Gpu,
    handler: || routes!(faults::inject),
}];

/// The OpenAPI document and the page that shows it. They are open, and not in the document themselves.
pub(super) const DOCUMENT_PATH: &str = "/openapi.json";
pub(super) const PAGE_PATH: &str = "/docs";
pub(super) const PAGES: [&str; 4] = [DOCUMENT_PATH, PAGE_PATH, "/docs/", "/docs/{*rest}"];

impl Api {
    pub(super) const ALL: [Self; 13] = [
        Self::OpenAi,
        Self::Tei,
        Self::Cohere,
        Self::Anthropic,
        Self::Ollama,
        Self::Qdrant,
        Self::OpenInference,
        Self::Mcp,
        Self::Gpu,
        Self::Admin,
        Self::Health,
        Self::Ui,
        Self::Docs,
    ];

    /// The API whose clients would ask for a path that is in no table: that of the first route below the same segment.
    pub(super) fn of_unknown(path: &str) -> Self {
        fn segment(path: &str) -> Option<&str> {
            path.split('/').nth(1)
        }
        ROUTES.iter().find(|route| segment(route.path) == segment(path)).map_or(Self::Docs, |route| route.api)
    }

    pub(crate) fn shape(self) -> Shape {
        match self {
            Self::OpenAi => Shape::OpenAi,
            Self::Tei => Shape::Tei,
            Self::Cohere => Shape::Cohere,
            Self::Anthropic => Shape::Anthropic,
            Self::Ollama => Shape::Ollama,
            Self::Qdrant => Shape::Qdrant,
            Self::OpenInference | Self::Mcp | Self::Gpu | Self::Admin | Self::Health | Self::Ui | Self::Docs => {
                Shape::Plain
            }
        }
    }

    pub(super) fn tag(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Tei => "tei",
            Self::Cohere => "cohere",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
            Self::Qdrant => "qdrant",
            Self::OpenInference => "open_inference",
            Self::Mcp => "mcp",
            Self::Gpu => "gpu",
            Self::Admin => "admin",
            Self::Health => "health",
            Self::Ui => "ui",
            Self::Docs => "docs",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn listed() -> BTreeSet<String> {
        ROUTES.iter().map(|route| format!("{} {}", route.method, route.path)).collect()
    }

    #[test]
    fn a_route_is_in_the_table_once_and_a_path_asks_for_one_kind_of_key() {
        assert_eq!(listed().len(), ROUTES.len());
        // Of the paths of collections some are read by one method and changed by another.
        let key = |route: &Route| match route.access {
            Access::Open => 0,
            Access::Change if !route.is_of_collections() => 2,
            Access::Read | Access::Compute | Access::Change => 1,
        };
        for route in ROUTES {
            let same_path = ROUTES.iter().filter(|other| other.path == route.path);
            assert!(same_path.clone().all(|other| key(other) == key(route)), "{}", route.path);
            let has_body = route.method != Method::GET;
            assert!(has_body || !matches!(route.access, Access::Compute | Access::Change), "{}", route.path);
            assert!(!PAGES.contains(&route.path));
        }
        assert!(Api::ALL.into_iter().enumerate().all(|(index, api)| api as usize == index));
    }

    #[test]
    fn the_openapi_document_has_the_routes_of_the_table() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("../../../../docs/openapi.json")).expect("the document is JSON");
        let methods = |(path, item): (&String, &serde_json::Value)| -> Vec<String> {
            let methods = item.as_object().expect("a path has methods").keys();
            methods.map(|method| format!("{} {path}", method.to_uppercase())).collect()
        };
        let described: BTreeSet<String> =
            document["paths"].as_object().expect("there are paths").iter().flat_map(methods).collect();
        let of_the_page = ROUTES.iter().filter(|route| route.api == Api::Ui);
        let of_the_page: BTreeSet<String> =
            of_the_page.map(|route| format!("{} {}", route.method, route.path)).collect();
        assert_eq!(described, listed().difference(&of_the_page).cloned().collect());
    }

    #[test]
    fn the_manual_names_the_routes_of_the_table() {
        let manual = include_str!("../../../../docs/server.md");
        const METHODS: [&str; 5] = ["GET /", "POST /", "PUT /", "PATCH /", "DELETE /"];
        let is_route = |code: &&str| METHODS.iter().any(|start| code.starts_with(start));
        let named: BTreeSet<&str> = manual.split('`').filter(is_route).collect();
        let written = |route: &Route| {
            let path = route.path.replace("{organisation}/{model}", "ORGANISATION/NAME").replace("{model}", "NAME");
            let path = path.replace("{collection_name}", "NAME").replace("{id}", "ID").replace("{field_name}", "FIELD");
            let path = path.replace("{snapshot_name}", "SNAPSHOT").replace("{vector_name}", "VECTOR");
            let path = path.replace("{vector_store_id}", "STORE").replace("{file_id}", "FILE");
            let path = path.replace("{batch_id}", "BATCH").replace("{version}", "VERSION");
            format!("{} {path}", route.method)
        };
        let listed: BTreeSet<String> = ROUTES.iter().map(written).collect();
        assert_eq!(named, listed.iter().map(String::as_str).collect());
    }

    #[test]
    fn an_unknown_path_has_the_error_shape_of_the_api_below_whose_prefix_it_is() {
        let cases = [
            ("/v1/nothing", Shape::OpenAi),
            ("/v2/nothing", Shape::Cohere),
            ("/api/nothing", Shape::Ollama),
            ("/collections/a/nothing", Shape::Qdrant),
            ("/embedded", Shape::Plain),
            ("/gpu/nothing", Shape::Plain),
        ];
        for (path, shape) in cases {
            assert_eq!(Api::of_unknown(path).shape(), shape, "{path}");
        }
    }
}
