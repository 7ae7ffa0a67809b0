//! Collections, their aliases and the indexes of their fields.
//! Indexes of fields are remembered and shown; filters need none.

use axum::{extract::State, response::Response};
use magray_index::{Collection, CollectionConfig, Condition, Filter};
use serde_json::{Value, json};

use super::{Answer, Names, Timed};
use crate::{
    qdrant::collections::{
        AliasAction, ChangeAliases, CreateCollection, CreateIndex, Kept, NewVector, UpdateCollection, remove_vector,
    },
    server::{app::App, body::Body, errors::Problem},
};

/// Lists the collections.
#[utoipa::path(
    get, path = "", operation_id = "get_collections",
    responses((status = 200, description = "Their names", body = Answer))
)]
pub(crate) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections()
        .with_all(move |all| {
            let names: Vec<Value> = all.list().into_iter().map(|name| json!({ "name": name })).collect();
            Ok(timed.answer(&json!({ "collections": names })))
        })
        .await
}

/// Tells whether there is a collection.
#[utoipa::path(
    get, path = "", operation_id = "collection_exists",
    responses((status = 200, description = "Whether it is there", body = Answer))
)]
pub(crate) async fn exists(State(app): State<App>, Names(name): Names<String>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections().with_all(move |all| Ok(timed.answer(&json!({ "exists": all.exists(&name) })))).await
}

/// Makes a collection. `vectors` says which vectors its points have, `sparse_vectors` which sparse ones.
#[utoipa::path(
    put, path = "", operation_id = "create_collection",
    request_body = serde_json::Value,
    responses(
        (status = 200, description = "It is there", body = Answer),
        (status = 409, description = "There is one of this name", body = crate::server::errors::QdrantError),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: CreateCollection = body.json()?;
    app.collections()
        .with_all(move |all| {
            all.create(&name, request.into_config()?)?;
            Ok(timed.answer(&true))
        })
        .await
}

/// Shows a collection.
#[utoipa::path(
    get, path = "", operation_id = "get_collection",
    responses((status = 200, description = "Its settings and how much it holds", body = Answer))
)]
pub(crate) async fn info(State(app): State<App>, Names(name): Names<String>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections()
        .with_one(name, move |collection| {
            let points = collection.count(None)?;
            let config = collection.config();
            let count = |field: &str| points_with(collection, field);
            let shown = Kept::of(&config).shown(points, config.text_field.as_deref(), count);
            Ok(timed.answer(&shown))
        })
        .await
}

/// How many points have a field.
fn points_with(collection: &Collection, field: &str) -> usize {
    let Ok(path) = field.parse() else { return 0 };
    let filter = Filter { must_not: vec![Condition::IsEmpty(path)], ..Filter::default() };
    collection.count(Some(&filter)).unwrap_or(0)
}

/// Changes the metadata of a collection.
#[utoipa::path(
    patch, path = "", operation_id = "update_collection",
    request_body = serde_json::Value,
    responses((status = 200, description = "It is changed", body = Answer))
)]
pub(crate) async fn update(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let request: UpdateCollection = body.json()?;
    keep(app, name, move |kept| {
        kept.update(request);
        Ok(())
    })
    .await?;
    Ok(timed.answer(&true))
}

/// Deletes a collection with all of its points.
#[utoipa::path(
    delete, path = "", operation_id = "delete_collection",
    responses((status = 200, description = "Whether it was there", body = Answer))
)]
pub(crate) async fn delete(State(app): State<App>, Names(name): Names<String>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections().with_all(move |all| Ok(timed.answer(&all.delete(&name)?))).await
}

/// Adds a vector to a collection: `{"dense": {"size": .., "distance": ..}}` or `{"sparse": {..}}`. All points are written anew.
#[utoipa::path(
    put, path = "", operation_id = "create_vector_name",
    request_body = serde_json::Value,
    responses((status = 200, description = "Points may have it", body = Answer))
)]
pub(crate) async fn create_vector(
    State(app): State<App>,
    Names((name, vector)): Names<(String, String)>,
    body: Body,
) -> Result<Response, Problem> {
    let new: NewVector = body.json()?;
    change_vectors(app, name, |config| new.add(vector, config)).await
}

/// Deletes a vector of all points of a collection. All points are written anew.
#[utoipa::path(
    delete, path = "", operation_id = "delete_vector_name",
    responses((status = 200, description = "It is gone", body = Answer))
)]
pub(crate) async fn delete_vector(
    State(app): State<App>,
    Names((name, vector)): Names<(String, String)>,
) -> Result<Response, Problem> {
    change_vectors(app, name, move |config| remove_vector(&vector, config)).await
}

async fn change_vectors(
    app: App,
    name: String,
    change: impl FnOnce(&mut CollectionConfig) -> magray_index::Result<()> + Send + 'static,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections()
        .with_all(move |all| {
            all.change_vectors(&name, change)?;
            Ok(timed.answer(&json!({"operation_id": 0, "status": "completed"})))
        })
        .await
}

/// Remembers that a field has an index. Filters need none.
#[utoipa::path(
    put, path = "", operation_id = "create_field_index",
    request_body = serde_json::Value,
    responses((status = 200, description = "It is there", body = Answer))
)]
pub(crate) async fn create_index(
    State(app): State<App>,
    Names(name): Names<String>,
    body: Body,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    let index: CreateIndex = body.json()?;
    keep(app, name, move |kept| kept.add_field(index)).await?;
    Ok(timed.answer(&json!({"operation_id": 0, "status": "completed"})))
}

/// Forgets the index of a field.
#[utoipa::path(
    delete, path = "", operation_id = "delete_field_index",
    responses((status = 200, description = "It is gone", body = Answer))
)]
pub(crate) async fn delete_index(
    State(app): State<App>,
    Names((name, field)): Names<(String, String)>,
) -> Result<Response, Problem> {
    let timed = Timed::start();
    keep(app, name, move |kept| {
        kept.remove_field(&field);
        Ok(())
    })
    .await?;
    Ok(timed.answer(&json!({"operation_id": 0, "status": "completed"})))
}

/// Changes what is kept beside a collection.
async fn keep(
    app: App,
    name: String,
    change: impl FnOnce(&mut Kept) -> magray_index::Result<()> + Send + 'static,
) -> Result<(), Problem> {
    app.collections().with_one(name, move |collection| Ok(Kept::change(collection, change)?)).await
}

/// Changes aliases, all of them or none.
#[utoipa::path(
    post, path = "", operation_id = "update_aliases",
    request_body = serde_json::Value,
    responses((status = 200, description = "They are changed", body = Answer))
)]
pub(crate) async fn change_aliases(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let timed = Timed::start();
    let ChangeAliases { actions } = body.json()?;
    app.collections()
        .with_all(move |all| {
            all.change_aliases(&actions.into_iter().map(AliasAction::into_change).collect::<Vec<_>>())?;
            Ok(timed.answer(&true))
        })
        .await
}

/// Lists the aliases.
#[utoipa::path(
    get, path = "", operation_id = "get_collections_aliases",
    responses((status = 200, description = "The aliases", body = Answer))
)]
pub(crate) async fn aliases(State(app): State<App>) -> Result<Response, Problem> {
    list_aliases(app, None).await
}

/// Lists the aliases of a collection.
#[utoipa::path(
    get, path = "", operation_id = "get_collection_aliases",
    responses((status = 200, description = "The aliases", body = Answer))
)]
pub(crate) async fn collection_aliases(
    State(app): State<App>,
    Names(name): Names<String>,
) -> Result<Response, Problem> {
    list_aliases(app, Some(name)).await
}

async fn list_aliases(app: App, of: Option<String>) -> Result<Response, Problem> {
    let timed = Timed::start();
    app.collections()
        .with_all(move |all| {
            let aliases = all.aliases().into_iter().filter(|(_, name)| of.as_ref().is_none_or(|of| of == name));
            let aliases: Vec<Value> =
                aliases.map(|(alias, name)| json!({"alias_name": alias, "collection_name": name})).collect();
            Ok(timed.answer(&json!({ "aliases": aliases })))
        })
        .await
}
