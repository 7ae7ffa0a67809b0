//! The tools of collections: agents put documents in, and find them by meaning and by words.
//! Thin callers of what Qdrant's API calls too.

use std::collections::BTreeMap;

use magray_index::text::{Analyzer, SnippetLimits, snippet};
use rmcp::{Json, handler::server::wrapper::Parameters, schemars::JsonSchema, tool, tool_router};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Tools;
use crate::{
    qdrant::collections::Kept,
    server::{
        apis::{
            new_documents::{self, NewDocument},
            passages::{self, DocumentSearch},
        },
        errors::Problem,
    },
};

/// Documents to put into a collection.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct NewDocuments {
    /// A name of list_collections, or a new one.
    collection: String,
    documents: Vec<ToAdd>,
}

/// A document.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars", rename = "NewDocument")]
struct ToAdd {
    text: String,
    /// A document with the same id is replaced; without it, one with the same text.
    #[serde(default)]
    id: Option<String>,
    /// Other fields, which filters can test.
    #[serde(default)]
    fields: Option<Map<String, Value>>,
}

/// How many documents were put in.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Added {
    collection: String,
    documents: usize,
}

/// What is searched for.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Search {
    /// A name of list_collections.
    collection: String,
    query: String,
    /// How many documents are returned; without it, 5.
    #[serde(default)]
    limit: Option<usize>,
    /// By words too (BM25), and both fused.
    #[serde(default)]
    hybrid: bool,
    /// In the order of a model that reads query and text together.
    #[serde(default)]
    rerank: bool,
    /// A filter of Qdrant's, such as {"must": [{"key": "author", "match": {"value": "Ann"}}]}.
    #[serde(default)]
    filter: Option<Map<String, Value>>,
}

/// The documents that fit best, the best first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct SearchResults {
    results: Vec<FoundDocument>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct FoundDocument {
    id: String,
    score: f64,
    /// The part of the text that says most about the query, its words between asterisks.
    snippet: String,
    /// All fields of the document.
    document: Map<String, Value>,
}

/// The collections.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct CollectionList {
    collections: Vec<ListedCollection>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ListedCollection {
    name: String,
    documents: usize,
    /// The model that embeds its texts, where one is known.
    model: Option<String>,
}

/// What is returned where nothing is said.
const LIMIT: usize = 5;

#[tool_router(router = collection_routes, vis = "pub(super)")]
impl Tools {
    /// Lists the collections of documents that can be searched.
    #[tool(annotations(
        title = "List collections",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_collections(&self) -> Result<Json<CollectionList>, String> {
        let listed = self.app.collections().with_all(|all| {
            let mut collections = Vec::new();
            for name in all.list() {
                let collection = all.get(&name)?;
                let (documents, model) = (collection.count(None)?, Kept::of(&collection.config()).model());
                collections.push(ListedCollection { name, documents, model });
            }
            Ok(CollectionList { collections })
        });
        listed.await.map(Json).map_err(|problem| problem.message)
    }

    /// Puts documents into a collection, which is made if it is not there; their texts are embedded here.
    #[tool(annotations(
        title = "Add documents to a collection",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn add_documents(&self, Parameters(new): Parameters<NewDocuments>) -> Result<Json<Added>, String> {
        self.add(new).await.map(Json).map_err(|problem| problem.message)
    }

    /// Finds the documents of a collection that fit a query best, by meaning and, if wanted, by words.
    #[tool(annotations(
        title = "Search a collection",
        read_only_hint = true,
        destructive_hint = false,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn search_collection(&self, Parameters(search): Parameters<Search>) -> Result<Json<SearchResults>, String> {
        self.search(search).await.map(Json).map_err(|problem| problem.message)
    }
}

impl Tools {
    async fn add(&self, new: NewDocuments) -> Result<Added, Problem> {
        let document = |document: ToAdd| NewDocument {
            id: document.id.map(|id| id.parse::<u64>().map_or_else(|_| Value::String(id), Value::from)),
            text: document.text,
            fields: document.fields.unwrap_or_default(),
        };
        let documents: Vec<NewDocument> = new.documents.into_iter().map(document).collect();
        let count = documents.len();
        new_documents::add(&self.app, new.collection.clone(), documents).await?;
        Ok(Added { collection: new.collection, documents: count })
    }

    async fn search(&self, search: Search) -> Result<SearchResults, Problem> {
        let analyzer = Analyzer::default();
        let terms: BTreeMap<String, f32> =
            analyzer.words(&search.query).map(|word| (word.term.to_string(), 1.0)).collect();
        let search = DocumentSearch {
            collection: search.collection,
            query: search.query,
            limit: search.limit.unwrap_or(LIMIT),
            is_hybrid: Some(search.hybrid),
            is_reranked: search.rerank,
            filter: search.filter.map(Value::Object),
        };
        let results = passages::search(&self.app, search).await?.into_iter().map(|one| {
            let snippet = snippet(&one.text, &analyzer, &terms, SnippetLimits::default()).marked("**", "**");
            let id = one.id.as_str().map_or_else(|| one.id.to_string(), str::to_owned);
            FoundDocument { id, score: one.score, snippet, document: one.fields }
        });
        Ok(SearchResults { results: results.collect() })
    }
}
