//! Distances among a sample of points: for each, those of the sample that are nearest.
//! Draws the sample by chance.

use axum::{extract::State, response::Response};
use magray_index::{Collection, Condition, Example, Filter, PointId, Query, QueryKind, Scored};
use serde_json::{Value, json};

use super::{Answer, Names, Timed};
use crate::{
    qdrant::query::MatrixRequest,
    server::{app::App, body::Body, errors::Problem},
};

/// Lists pairs of points of a sample with their scores.
#[utoipa::path(
    post, path = "", operation_id = "search_matrix_pairs",
    request_body = serde_json::Value,
    responses((status = 200, description = "The pairs", body = Answer))
)]
pub(crate) async fn pairs(State(app): State<App>, Names(name): Names<String>, body: Body) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: MatrixRequest = body.json()?;
    app.collections()
        .with_one(name, move |collection| {
            let rows = rows(collection, &request)?;
            let pair = |(a, found): &(PointId, Vec<Scored>)| -> Vec<Value> {
                found.iter().map(|b| json!({"a": a, "b": b.id, "score": b.score})).collect()
            };
            Ok(timed.answer(&json!({ "pairs": rows.iter().flat_map(pair).collect::<Vec<_>>() })))
        })
        .await
}

/// Tells the scores among points of a sample as the parts of a sparse matrix.
#[utoipa::path(
    post, path = "", operation_id = "search_matrix_offsets",
    request_body = serde_json::Value,
    responses((status = 200, description = "The matrix", body = Answer))
)]
pub(crate) async fn offsets(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: MatrixRequest = body.json()?;
    app.collections()
        .with_one(name, move |collection| {
            let found = rows(collection, &request)?;
            let ids: Vec<PointId> = found.iter().map(|(id, _)| *id).collect();
            let (mut rows, mut columns, mut scores) = (Vec::new(), Vec::new(), Vec::new());
            for (row, (_, near)) in found.iter().enumerate() {
                for one in near {
                    // They are all of the sample, in the order of their ids.
                    columns.extend(ids.binary_search(&one.id).ok());
                    rows.push(row);
                    scores.push(one.score);
                }
            }
            Ok(timed.answer(&json!({"offsets_row": rows, "offsets_col": columns, "scores": scores, "ids": ids})))
        })
        .await
}

/// The sample in the order of its ids, each with those of it that are nearest.
fn rows(collection: &Collection, request: &MatrixRequest) -> magray_index::Result<Vec<(PointId, Vec<Scored>)>> {
    let using = request.using.clone().unwrap_or_default();
    let and = |filter: Filter| match &request.filter {
        Some(own) => filter.and(own.clone()),
        None => filter,
    };
    let mut sample = Query::new(QueryKind::Sample, request.sample());
    sample.filter = Some(and(Filter::must(Condition::HasVector(using.clone()))));
    let mut ids: Vec<PointId> = collection.query(&sample)?.into_iter().map(|point| point.id).collect();
    ids.sort_unstable();
    if ids.len() < 2 {
        return Ok(Vec::new());
    }
    let row = |id: &PointId| {
        // The point itself is left out of what is like it.
        let mut query = Query::new(QueryKind::Nearest(Example::Id(*id)), request.limit());
        query.using = using.clone();
        query.filter = Some(Filter::must(Condition::HasId(ids.clone())));
        Ok((*id, collection.query(&query)?))
    };
    ids.iter().map(row).collect()
}
