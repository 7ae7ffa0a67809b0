//! Queries: ranked points, alone, in batches and in groups; searches, recommendations and discoveries of older clients.
//! Texts are embedded first, and points of other collections are looked up.

use std::collections::BTreeMap;

use axum::{extract::State, response::Response};
use magray_index::{Collection, Collections, PayloadSelector, PointId, Query, Record, Scored, VectorSelector};
use serde::Serialize;

use super::{Answer, Names, Timed};
use crate::{
    qdrant::{
        forms::WithLookup,
        mmr,
        older::OlderRequest,
        query::{AsksForPoints, BatchRequest, GroupsRequest, LookupFrom, Mmr, QueryRequest},
        shown::{ShownGroup, ShownScored},
        vectors::{Documents, VectorInput},
    },
    server::{
        app::App,
        body::Body,
        documents::{self, Purpose},
        errors::Problem,
    },
};

/// Ranks points: the nearest to a vector or a text, like and unlike examples, by a field, or by several such queries fused.
#[utoipa::path(
    post, path = "", operation_id = "query_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best points", body = Answer))
)]
pub(crate) async fn query(State(app): State<App>, Names(name): Names<String>, body: Body) -> Result<Response, Problem> {
    one::<QueryRequest>(app, name, body, Form::Object).await
}

/// Answers several queries.
#[utoipa::path(
    post, path = "", operation_id = "query_batch_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best points of each", body = Answer))
)]
pub(crate) async fn query_batch(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    several::<QueryRequest>(app, name, body, Form::Object).await
}

/// Ranks points in groups that have the same value of a field.
#[utoipa::path(
    post, path = "", operation_id = "query_points_groups",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best groups", body = Answer))
)]
pub(crate) async fn query_groups(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    groups::<QueryRequest>(app, name, body).await
}

/// Finds the nearest points, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "search_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The nearest points", body = Answer))
)]
pub(crate) async fn search(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    one::<OlderRequest>(app, name, body, Form::List).await
}

/// Answers several searches, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "search_batch_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The nearest points of each", body = Answer))
)]
pub(crate) async fn search_batch(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    several::<OlderRequest>(app, name, body, Form::List).await
}

/// Finds the nearest points in groups, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "search_point_groups",
    request_body = serde_json::Value,
    responses((status = 200, description = "The nearest groups", body = Answer))
)]
pub(crate) async fn search_groups(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    groups::<OlderRequest>(app, name, body).await
}

/// Finds points like some examples and unlike others, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "recommend_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best points", body = Answer))
)]
pub(crate) async fn recommend(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    one::<OlderRequest>(app, name, body, Form::List).await
}

/// Answers several recommendations, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "recommend_batch_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best points of each", body = Answer))
)]
pub(crate) async fn recommend_batch(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    several::<OlderRequest>(app, name, body, Form::List).await
}

/// Finds points like some examples and unlike others in groups, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "recommend_point_groups",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best groups", body = Answer))
)]
pub(crate) async fn recommend_groups(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    groups::<OlderRequest>(app, name, body).await
}

/// Finds points near a target on one side of pairs, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "discover_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best points", body = Answer))
)]
pub(crate) async fn discover(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    one::<OlderRequest>(app, name, body, Form::List).await
}

/// Answers several discoveries, as older clients ask.
#[utoipa::path(
    post, path = "", operation_id = "discover_batch_points",
    request_body = serde_json::Value,
    responses((status = 200, description = "The best points of each", body = Answer))
)]
pub(crate) async fn discover_batch(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    several::<OlderRequest>(app, name, body, Form::List).await
}

/// How ranked points stand in an answer.
#[derive(Clone, Copy)]
enum Form {
    /// As older clients know them.
    List,
    Object,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Ranked<'a> {
    List(Vec<ShownScored<'a>>),
    Object { points: Vec<ShownScored<'a>> },
}

impl Form {
    fn of(self, points: &[Scored]) -> Ranked<'_> {
        let points = points.iter().map(ShownScored).collect();
        match self {
            Self::List => Ranked::List(points),
            Self::Object => Ranked::Object { points },
        }
    }
}

#[derive(Serialize)]
struct Groups<'a> {
    groups: Vec<ShownGroup<'a>>,
}

async fn one<T: AsksForPoints>(app: App, name: String, body: Body, form: Form) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request = body.read(&app, |_, body| Ok(body.json::<T>()?.into_request()?)).await?;
    let mut requests = [request];
    embed(&app, &mut requests).await?;
    app.collections()
        .with_all(move |all| {
            let [request] = requests;
            Ok(timed.answer(&form.of(&find(all, &name, request)?)))
        })
        .await
}

async fn several<T: AsksForPoints>(app: App, name: String, body: Body, form: Form) -> Result<Response, Problem> {
    let timed = Timed::start();
    let read = |_: &App, body: &Body| {
        let BatchRequest::<T> { searches } = body.json()?;
        Ok(searches.into_iter().map(T::into_request).collect::<Result<Vec<_>, _>>()?)
    };
    let mut requests = body.read(&app, read).await?;
    embed(&app, &mut requests).await?;
    app.collections()
        .with_all(move |all| {
            let found = requests.into_iter().map(|request| find(all, &name, request));
            let found = found.collect::<Result<Vec<_>, _>>()?;
            Ok(timed.answer(&found.iter().map(|points| form.of(points)).collect::<Vec<_>>()))
        })
        .await
}

async fn groups<T: AsksForPoints>(app: App, name: String, body: Body) -> Result<Response, Problem> {
    let timed = Timed::start();
    let read = |_: &App, body: &Body| {
        let GroupsRequest::<T> { query, grouping } = body.json()?;
        Ok((query.into_request()?, grouping))
    };
    let (request, mut grouping) = body.read(&app, read).await?;
    let mut requests = [request];
    embed(&app, &mut requests).await?;
    app.collections()
        .with_all(move |all| {
            let [mut request] = requests;
            look_up(all, &name, &mut request)?;
            let with_lookup = grouping.with_lookup.take();
            let found = all.get(&name)?.query_groups(&grouping.into_query(request)?)?;
            let ids = found.iter().filter_map(|group| serde_json::from_value(group.id.clone()).ok());
            let lookups =
                with_lookup.map(|with| group_points(all, &with, ids.collect())).transpose()?.unwrap_or_default();
            Ok(timed.answer(&Groups { groups: found.iter().map(|group| ShownGroup(group, &lookups)).collect() }))
        })
        .await
}

/// Puts vectors in the place of texts.
pub(in crate::server) async fn embed(app: &App, requests: &mut [QueryRequest]) -> Result<(), Problem> {
    let mut documents = Documents::default();
    for request in &mut *requests {
        request.visit_vectors::<Problem>(&mut |vector, _, _| {
            documents.note(vector);
            Ok(())
        })?;
    }
    let mut embedded = documents::embed(app, documents, Purpose::Searching).await?;
    for request in requests {
        request.visit_vectors::<Problem>(&mut |vector, _, _| {
            embedded.fill(vector);
            Ok(())
        })?;
    }
    Ok(())
}

pub(in crate::server) fn find(
    all: &Collections,
    name: &str,
    mut request: QueryRequest,
) -> Result<Vec<Scored>, Problem> {
    look_up(all, name, &mut request)?;
    let (collection, mmr) = (all.get(name)?, request.mmr());
    let query = request.into_query()?;
    Ok(match mmr {
        Some(mmr) => find_unlike(&collection, query, mmr)?,
        None => collection.query(&query)?,
    })
}

/// The nearest that are unlike each other.
fn find_unlike(collection: &Collection, mut query: Query, mmr: Mmr) -> magray_index::Result<Vec<Scored>> {
    let (limit, offset) = (query.limit, std::mem::take(&mut query.offset));
    query.limit = mmr.candidates_limit.unwrap_or(limit);
    let wanted = std::mem::replace(&mut query.with_vectors, VectorSelector::All);
    let distance = collection.config().dense.get(&query.using).map(|config| config.distance);
    let found = collection.query(&query)?;
    let chosen = mmr::choose(found, &query.using, distance, mmr, limit.saturating_add(offset))?;
    let mut chosen: Vec<Scored> = chosen.into_iter().skip(offset).collect();
    for point in &mut chosen {
        match &wanted {
            VectorSelector::All => {}
            VectorSelector::None => point.vectors = None,
            VectorSelector::Names(names) => {
                point.vectors.iter_mut().for_each(|vectors| vectors.retain(|name, _| names.contains(name)));
            }
        }
    }
    Ok(chosen)
}

/// Puts vectors in the place of points that are in another collection.
fn look_up(all: &Collections, name: &str, request: &mut QueryRequest) -> Result<(), Problem> {
    request.visit_vectors(&mut |input, using, lookup| {
        let (VectorInput::Id(id), Some(LookupFrom { collection, vector })) = (&*input, lookup) else { return Ok(()) };
        let vector = vector.clone().unwrap_or_else(|| using.to_owned());
        if collection == name && vector == using {
            return Ok(());
        }
        let other = all.get(collection)?;
        let config = other.config();
        if !config.dense.contains_key(&vector) && !config.sparse.contains_key(&vector) {
            return Err(magray_index::Error::bad(format!("Not existing vector name error: {vector}")).into());
        }
        let found = other.retrieve(&[*id], &PayloadSelector::None, &VectorSelector::Names(vec![vector.clone()]))?;
        let own = found.into_iter().next().and_then(|point| point.vectors?.remove(&vector));
        let missing =
            || magray_index::Error::NotFound { what: format!("vector '{vector}' of point {id} in '{collection}'") };
        *input = VectorInput::Vector(own.ok_or_else(missing)?);
        Ok(())
    })
}

fn group_points(all: &Collections, with: &WithLookup, ids: Vec<PointId>) -> Result<BTreeMap<PointId, Record>, Problem> {
    let found = all.get(&with.collection)?.retrieve(&ids, &with.with_payload, &with.with_vectors)?;
    Ok(found.into_iter().map(|point| (point.id, point)).collect())
}
