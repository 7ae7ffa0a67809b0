//! Points: upsert, delete, payloads, vectors, alone and in batches; retrieve, scroll, count, facets.
//! A change is answered when it is on the disk, whatever `wait` says.

use std::collections::BTreeSet;

use axum::{extract::State, response::Response};
use magray_index::{Change, Collection, Condition, Filter, PointId, ScrollRequest};
use serde::Serialize;
use serde_json::json;

use super::{Answer, Names, Timed};
use crate::{
    qdrant::{
        forms::WithPayload,
        points::{
            Count, DeletePayload, DeleteVectors, Facet, Operation, Operations, Retrieve, Selected, SetPayload,
            UpdateMode, UpdateVectors, Upsert,
        },
        query::ScrollBody,
        shown::ShownRecord,
        vectors::Documents,
    },
    server::{
        app::App,
        body::Body,
        documents::{Purpose, embed},
        errors::{Kind, Problem},
    },
};

/// Adds points, or replaces those with the same ids. A vector may be a text, `{"text": .., "model": ..}`, that the server
/// embeds.
#[utoipa::path(
    put, path = "", operation_id = "upsert_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are stored", body = Answer))
)]
pub(crate) async fn upsert(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let upsert: Upsert = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::Upsert(upsert)]).await
}

/// Deletes points.
#[utoipa::path(
    post, path = "", operation_id = "delete_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are deleted", body = Answer))
)]
pub(crate) async fn delete(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let selected: Selected = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::Delete(selected)]).await
}

/// Sets fields of payloads; others stay.
#[utoipa::path(
    post, path = "", operation_id = "set_payload",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are set", body = Answer))
)]
pub(crate) async fn set_payload(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let set: SetPayload = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::SetPayload(set)]).await
}

/// Replaces payloads.
#[utoipa::path(
    put, path = "", operation_id = "overwrite_payload",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are replaced", body = Answer))
)]
pub(crate) async fn overwrite_payload(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let set: SetPayload = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::OverwritePayload(set)]).await
}

/// Deletes fields of payloads.
#[utoipa::path(
    post, path = "", operation_id = "delete_payload",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are deleted", body = Answer))
)]
pub(crate) async fn delete_payload(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let delete: DeletePayload = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::DeletePayload(delete)]).await
}

/// Deletes whole payloads.
#[utoipa::path(
    post, path = "", operation_id = "clear_payload",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are empty", body = Answer))
)]
pub(crate) async fn clear_payload(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let selected: Selected = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::ClearPayload(selected)]).await
}

/// Sets vectors of points that are there; others of their vectors stay.
#[utoipa::path(
    put, path = "", operation_id = "update_vectors",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are set", body = Answer))
)]
pub(crate) async fn update_vectors(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let update: UpdateVectors = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::UpdateVectors(update)]).await
}

/// Deletes vectors of points by their names.
#[utoipa::path(
    post, path = "", operation_id = "delete_vectors",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are deleted", body = Answer))
)]
pub(crate) async fn delete_vectors(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let delete: DeleteVectors = body.read(&app, |_, body| body.json()).await?;
    change(app, name, vec![Operation::DeleteVectors(delete)]).await
}

/// Changes points one way after the other, in this order.
#[utoipa::path(
    post, path = "", operation_id = "batch_update_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "All is done", body = Answer))
)]
pub(crate) async fn batch(State(app): State<App>, Names(name): Names<String>, body: Body) -> Result<Response, Problem> {
    let timed = Timed::start();
    let Operations { operations } = body.read(&app, |_, body| body.json()).await?;
    let count = operations.len();
    apply_all(&app, name, operations).await?;
    Ok(timed.answer(&vec![json!({"operation_id": 0, "status": "completed"}); count]))
}

async fn change(app: App, name: String, operations: Vec<Operation>) -> Result<Response, Problem> {
    let timed = Timed::start();
    apply_all(&app, name, operations).await?;
    Ok(timed.answer(&json!({"operation_id": 0, "status": "completed"})))
}

/// Embeds what is text, and changes points.
pub(in crate::server) async fn apply_all(
    app: &App,
    name: String,
    mut operations: Vec<Operation>,
) -> Result<(), Problem> {
    let mut documents = Documents::default();
    operations.iter_mut().for_each(|operation| operation.visit_vectors(&mut |vector| documents.note(vector)));
    let mut embedded = embed(app, documents, Purpose::Storing).await?;
    operations.iter_mut().for_each(|operation| operation.visit_vectors(&mut |vector| embedded.fill(vector)));
    app.collections().with_one(name, |collection| Ok(apply(collection, operations)?)).await
}

/// Changes that look at nothing are checked as a whole before the first is made.
fn apply(collection: &Collection, operations: Vec<Operation>) -> magray_index::Result<()> {
    let mut plain = Vec::with_capacity(operations.len());
    for mut operation in operations {
        let condition = operation.condition();
        let mut change = operation.into_change()?;
        if let Some((mode, filter)) = condition {
            collection.change(std::mem::take(&mut plain))?;
            restrict(collection, &mut change, mode, filter)?;
            if matches!(&change, Change::Upsert(points) if points.is_empty()) {
                continue;
            }
        }
        plain.push(change);
    }
    collection.change(plain)
}

/// Leaves only points that may be written: of those that are there, the ones that the mode and the filter allow.
fn restrict(
    collection: &Collection,
    change: &mut Change,
    mode: UpdateMode,
    filter: Option<Filter>,
) -> magray_index::Result<()> {
    let ids: Vec<PointId> = match change {
        Change::Upsert(points) => points.iter().map(|point| point.id).collect(),
        Change::UpdateVectors(points) => points.iter().map(|(id, _)| *id).collect(),
        _ => return Ok(()),
    };
    let there = matching(collection, &ids, None)?;
    let allowed = filter.map(|filter| matching(collection, &ids, Some(filter))).transpose()?;
    let is_kept = |id: &PointId| match (there.contains(id), mode) {
        (true, UpdateMode::InsertOnly) | (false, UpdateMode::UpdateOnly) => false,
        (true, _) => allowed.as_ref().is_none_or(|allowed| allowed.contains(id)),
        (false, _) => true,
    };
    match change {
        Change::Upsert(points) => points.retain(|point| is_kept(&point.id)),
        Change::UpdateVectors(points) => points.retain(|(id, _)| is_kept(id)),
        _ => {}
    }
    Ok(())
}

/// Which of these ids are there, and meet a filter.
fn matching(
    collection: &Collection,
    ids: &[PointId],
    filter: Option<Filter>,
) -> magray_index::Result<BTreeSet<PointId>> {
    let these = Filter::must(Condition::HasId(ids.to_vec()));
    let filter = Some(match filter {
        Some(filter) => these.and(filter),
        None => these,
    });
    let found = collection.scroll(&ScrollRequest { filter, limit: ids.len().max(1), ..ScrollRequest::default() })?;
    Ok(found.points.into_iter().map(|point| point.id).collect())
}

/// Returns points by their ids; those that are not there are left out.
#[utoipa::path(
    post, path = "", operation_id = "get_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The points", body = Answer))
)]
pub(crate) async fn retrieve(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: Retrieve = body.read(&app, |_, body| body.json()).await?;
    app.collections()
        .with_one(name, move |collection| {
            let with_payload = request.with_payload.unwrap_or_else(WithPayload::all).0;
            let with_vectors = request.with_vector.unwrap_or_default().0;
            let found = collection.retrieve(&request.ids, &with_payload, &with_vectors)?;
            Ok(timed.answer(&found.iter().map(ShownRecord).collect::<Vec<_>>()))
        })
        .await
}

/// Returns one point.
#[utoipa::path(get, path = "", operation_id = "get_point", responses((status = 200, description = "The point", body = Answer)))]
pub(crate) async fn point(
    State(app): State<App>,
    Names((name, id)): Names<(String, String)>,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let id: PointId = id.parse()?;
    app.collections()
        .with_one(name, move |collection| {
            let found = collection.retrieve(&[id], &WithPayload::all().0, &magray_index::VectorSelector::All)?;
            let missing = || Problem::new(Kind::NotFound, format!("there is no point {id}"));
            let point = found.first().ok_or_else(missing)?;
            Ok(timed.answer(&ShownRecord(point)))
        })
        .await
}

#[derive(Serialize)]
struct Page<'a> {
    points: Vec<ShownRecord<'a>>,
    next_page_offset: Option<PointId>,
}

/// Returns points page by page, by their ids or by a field.
#[utoipa::path(
    post, path = "", operation_id = "scroll_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "A page, and where the next begins", body = Answer))
)]
pub(crate) async fn scroll(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: ScrollBody = body.read(&app, |_, body| body.json()).await?;
    app.collections()
        .with_one(name, move |collection| {
            let page = collection.scroll(&request.into_request()?)?;
            let points: Vec<_> = page.points.iter().map(ShownRecord).collect();
            Ok(timed.answer(&Page { points, next_page_offset: page.next }))
        })
        .await
}

/// Counts points.
#[utoipa::path(
    post, path = "", operation_id = "count_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "How many meet the filter", body = Answer))
)]
pub(crate) async fn count(State(app): State<App>, Names(name): Names<String>, body: Body) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: Count = body.read(&app, |_, body| body.json()).await?;
    app.collections()
        .with_one(name, move |collection| {
            let count = collection.count(request.filter.as_ref())?;
            Ok(timed.answer(&json!({ "count": count })))
        })
        .await
}

/// Counts the points that have each value of a field.
#[utoipa::path(
    post, path = "", operation_id = "facet",
    request_body = serde_json::Value,
    responses((status = 200, description = "Values, the most frequent first", body = Answer))
)]
pub(crate) async fn facet(State(app): State<App>, Names(name): Names<String>, body: Body) -> Result<Response, Problem> {
    const LIMIT: usize = 10;
    let timed = Timed::start();
    let request: Facet = body.read(&app, |_, body| body.json()).await?;
    app.collections()
        .with_one(name, move |collection| {
            let limit = request.limit.unwrap_or(LIMIT);
            let hits = collection.facet(&request.key.parse()?, request.filter.as_ref(), limit)?;
            let hits: Vec<_> = hits.into_iter().map(|hit| json!({"value": hit.value, "count": hit.count})).collect();
            Ok(timed.answer(&json!({ "hits": hits })))
        })
        .await
}
