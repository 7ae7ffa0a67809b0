//! Searches of stores, and of collections that were made elsewhere: by vectors, by words beside them, ranked again.
//! Several queries find what any of them finds, each part with its best score.

use std::{cmp::Ordering, collections::BTreeMap};

use axum::{Json, extract::State};
use magray_index::{
    Collection, Example, Filter, Fusion, JsonPath, Payload, PayloadSelector, PointId, Query, QueryKind, Scored, Vector,
};
use serde_json::Value;

use super::Store;
use crate::{
    qdrant::{texts::TEXT_FIELD, vectors::Document},
    server::{
        app::App,
        body::Body,
        documents::{self, Purpose},
        errors::{OpenAiError, Problem},
        models::Does,
        parameters::Names,
    },
    vector_stores::{
        answers::{Content, SearchPage, SearchResult},
        attached::{self, ATTRIBUTES, FILE_ID, FILENAME},
        filters,
        requests::{HybridSearch, Search, Wanted},
    },
};

/// Of reciprocal ranks.
const RRF_K: f32 = 60.0;
/// What each part of a hybrid search finds, and what is ranked again.
const CANDIDATES: usize = 100;

/// Finds the parts of files that fit a query best.
#[utoipa::path(
    post, path = "", operation_id = "search_vector_store",
    request_body = Search,
    responses(
        (status = 200, description = "Parts of files, the best first", body = SearchPage),
        (status = 404, description = "No such store", body = OpenAiError),
    )
)]
pub(crate) async fn search(
    State(app): State<App>,
    Names(id): Names<String>,
    body: Body,
) -> Result<Json<SearchPage>, Problem> {
    let (wanted, filter) = body
        .read(&app, |_, body| {
            let mut search: Search = body.json()?;
            Ok((search.checked()?, search.filters.take().filter(|filter| !filter.is_null())))
        })
        .await?;
    let (own, name) = (app.clone(), id.clone());
    let known = app.collections().with_all(move |all| {
        let store = Store::open(all, &name)?;
        store.check_usable()?;
        store.note_use()?;
        let unfinished = if own.indexing().is_new(&name) { attached::list(&store.collection)? } else { Vec::new() };
        let is_own = store.kept.store.is_some();
        let path = |key: &str| if is_own { JsonPath::key(ATTRIBUTES).then(key) } else { JsonPath::key(key) };
        let filter = filter.map(|filter| filters::read(&filter, &path)).transpose();
        let filter = filter.map_err(|error| Problem::from(error).about("filters"))?;
        let text_field = store.collection.config().text_field.clone().unwrap_or_else(|| TEXT_FIELD.to_owned());
        Ok((store.kept.model(), filter, text_field, unfinished))
    });
    let (model, filter, text_field, unfinished) = known.await?;
    app.index_files(&id, &unfinished);
    // What is not whole is not found.
    let filter = match (filter, attached::is_of_none(app.indexing().unfinished(&id).into_iter())) {
        (Some(filter), Some(whole)) => Some(filter.and(whole)),
        (filter, whole) => filter.or(whole),
    };
    let document = |query: &String| Document { text: query.clone(), model: model.clone() };
    let vectors = documents::embed(&app, wanted.queries.iter().map(document).collect(), Purpose::Searching).await?;
    let is_reranked = wanted.is_reranked && app.models().iter().any(|(_, model)| model.does == Does::Rank);
    let asked: Vec<(String, Vector)> = wanted.queries.iter().cloned().zip(vectors).collect();
    let how = How {
        limit: if is_reranked { CANDIDATES } else { wanted.limit },
        hybrid: wanted.hybrid,
        score_threshold: wanted.score_threshold.filter(|_| !is_reranked),
        filter,
        text_field: text_field.clone(),
    };
    let found = app.collections().with_one(id, move |collection| how.find(collection, asked));
    let mut found = found.await?;
    if is_reranked && !found.is_empty() {
        found = rerank(&app, &wanted, &text_field, found).await?;
    }
    found.truncate(wanted.limit);
    let results = found.into_iter().map(|point| result(point, &text_field)).collect();
    Ok(Json(SearchPage::new(wanted.queries, results)))
}

struct How {
    limit: usize,
    hybrid: Option<HybridSearch>,
    score_threshold: Option<f32>,
    filter: Option<Filter>,
    text_field: String,
}

impl How {
    fn find(&self, collection: &Collection, asked: Vec<(String, Vector)>) -> Result<Vec<Scored>, Problem> {
        let mut best: BTreeMap<PointId, Scored> = BTreeMap::new();
        for (text, vector) in asked {
            for mut point in collection.query(&self.query(text, vector))? {
                point.score /= self.score_max();
                if self.score_threshold.is_some_and(|threshold| point.score < threshold) {
                    continue;
                }
                match best.get_mut(&point.id) {
                    Some(known) => known.score = known.score.max(point.score),
                    None => drop(best.insert(point.id, point)),
                }
            }
        }
        let mut found: Vec<Scored> = best.into_values().collect();
        found.sort_by(best_first);
        Ok(found)
    }

    fn query(&self, text: String, vector: Vector) -> Query {
        let nearest = QueryKind::Nearest(Example::Vector(vector));
        let query = |what, limit| Query { filter: self.filter.clone(), ..Query::new(what, limit) };
        let by_meaning = query(nearest, self.limit);
        let mut query = match self.hybrid {
            None => by_meaning,
            Some(HybridSearch { embedding_weight, text_weight }) => {
                let by_words = Query { using: self.text_field.clone(), ..query(QueryKind::Text(text), CANDIDATES) };
                let by_meaning = Query { limit: CANDIDATES, ..by_meaning };
                let fusion = Fusion::Rrf { k: RRF_K, weights: vec![embedding_weight, text_weight] };
                Query { prefetch: vec![by_meaning, by_words], ..query(QueryKind::Fusion(fusion), self.limit) }
            }
        };
        query.with_payload = PayloadSelector::All;
        query
    }

    /// The score of what is first by vectors and by words: what is found has a share of it.
    fn score_max(&self) -> f32 {
        self.hybrid.map_or(1.0, |weights| (weights.embedding_weight + weights.text_weight) / (RRF_K + 1.0))
    }
}

fn best_first(one: &Scored, other: &Scored) -> Ordering {
    other.score.total_cmp(&one.score).then(one.id.cmp(&other.id))
}

/// Scores what was found by a model that reads query and text together.
async fn rerank(app: &App, wanted: &Wanted, text_field: &str, mut found: Vec<Scored>) -> Result<Vec<Scored>, Problem> {
    found.truncate(CANDIDATES);
    let texts: Vec<String> = found.iter().map(|point| text_of(point, text_field).to_owned()).collect();
    found.iter_mut().for_each(|point| point.score = f32::NEG_INFINITY);
    for query in &wanted.queries {
        let scores = app.rank_texts(query, texts.clone()).await?;
        found.iter_mut().zip(scores).for_each(|(point, score)| point.score = point.score.max(score));
    }
    found.retain(|point| wanted.score_threshold.is_none_or(|threshold| point.score >= threshold));
    found.sort_by(best_first);
    Ok(found)
}

fn text_of<'a>(point: &'a Scored, text_field: &str) -> &'a str {
    let text = point.payload.as_ref().and_then(|payload| payload.get(text_field)?.as_str());
    text.unwrap_or_default()
}

/// A point of a store, or of a collection that was made elsewhere: then its plain fields are its attributes.
fn result(point: Scored, text_field: &str) -> SearchResult {
    let text = text_of(&point, text_field).to_owned();
    let (id, score, mut payload) = (point.id, point.score, point.payload.unwrap_or_default());
    let named = |names: &[&str]| names.iter().find_map(|name| payload.get(*name)?.as_str().map(str::to_owned));
    let file_id = named(&[FILE_ID]).unwrap_or_else(|| id.to_string());
    let filename = named(&[FILENAME, "source", "title"]).unwrap_or_default();
    let attributes = match payload.remove(ATTRIBUTES) {
        Some(Value::Object(attributes)) => attributes,
        _ => {
            let is_plain = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
            payload.into_iter().filter(|(name, value)| name != text_field && is_plain(value)).collect::<Payload>()
        }
    };
    SearchResult { file_id, filename, score, attributes, content: vec![Content::new(text)] }
}
