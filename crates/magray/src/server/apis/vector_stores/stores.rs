//! Stores: made, listed, shown, changed, deleted.
//! Files that come with a new store are indexed after it was answered.

use axum::{Json, extract::State};
use magray_index::{Collections, Error};

use super::{PAGE, Store};
use crate::{
    qdrant::{
        collections::{CreateCollection, Kept},
        texts,
    },
    server::{
        app::App,
        body::Body,
        errors::{Kind, OpenAiError, Problem},
        index_jobs::now,
        parameters::{Names, QueryFields},
    },
    vector_stores::{
        answers::{Deleted, Page, VectorStore},
        attached,
        ids::Of,
        page::ListQuery,
        requests::{AttachFile, BATCH_FILES_MAX, CreateStore, UpdateStore},
        settings::StoreSettings,
    },
};

/// Makes a vector store: a collection with its id as the name.
#[utoipa::path(
    post, path = "", operation_id = "create_vector_store",
    request_body = CreateStore,
    responses((status = 200, description = "The store", body = VectorStore))
)]
pub(crate) async fn create(State(app): State<App>, body: Body) -> Result<Json<VectorStore>, Problem> {
    let mut request: CreateStore = body.json()?;
    let settings = request.settings(now())?;
    let model = app.models().embedder(request.model.as_deref())?;
    let model = (app.models().get(model).name.clone(), app.models().get(model).outputs);
    let file_ids = request.file_ids.unwrap_or_default();
    if file_ids.len() > BATCH_FILES_MAX {
        return Err(Problem::invalid("file_ids", format!("use {BATCH_FILES_MAX} files at most")));
    }
    let strategy = request.chunking_strategy;
    let plain = |file_id| AttachFile { file_id, attributes: None, chunking_strategy: strategy };
    let files: Vec<AttachFile> = file_ids.into_iter().map(plain).collect();
    let own = app.clone();
    let made = app.collections().with_all(move |all| {
        let id = create_collection(&own, all, &model, &settings)?;
        let (store, settings) = Store::own(all, &id)?;
        // A store without the files that it was to have is not left behind.
        let attached = store.attach((&own, all), files, None).inspect_err(|_| drop(all.delete(&id)))?;
        Ok((id, settings, attached))
    });
    let (id, settings, files) = made.await?;
    app.index_files(&id, &files);
    Ok(Json(VectorStore::new(id, settings, &files, now())))
}

fn create_collection(
    app: &App,
    all: &Collections,
    (model, dimensions): &(String, usize),
    settings: &StoreSettings,
) -> Result<String, Problem> {
    loop {
        let id = Of::Store.id(app.indexing().next_number());
        let create: CreateCollection = serde_json::from_value(texts::settings(model, *dimensions, attached::TEXT))?;
        let mut config = create.into_config()?;
        let mut kept = Kept::of(&config);
        kept.store = Some(settings.clone());
        config.metadata = kept.into_metadata();
        match all.create(&id, config) {
            Err(Error::Exists { .. }) => {}
            made => return Ok(made.map(|()| id)?),
        }
    }
}

/// Lists the vector stores.
#[utoipa::path(
    get, path = "", operation_id = "list_vector_stores",
    params(ListQuery),
    responses((status = 200, description = "A page of them", body = Page<VectorStore>))
)]
pub(crate) async fn list(
    State(app): State<App>,
    QueryFields(query): QueryFields<ListQuery>,
) -> Result<Json<Page<VectorStore>>, Problem> {
    let listed = app.collections().with_all(move |all| {
        let mut ids: Vec<String> = all.list().into_iter().filter(|name| Of::Store.number(name).is_some()).collect();
        // One that is damaged or was made elsewhere is left out.
        ids.retain(|id| Store::own(all, id).is_ok());
        ids.sort_by_key(|id| Of::Store.number(id));
        let page = query.page(ids, String::as_str, PAGE)?;
        page.map(|id| shown(all, &id))
    });
    Ok(Json(listed.await?))
}

/// Shows a vector store, or a collection as one.
#[utoipa::path(
    get, path = "", operation_id = "retrieve_vector_store",
    responses(
        (status = 200, description = "The store", body = VectorStore),
        (status = 404, description = "No such store", body = OpenAiError),
    )
)]
pub(crate) async fn retrieve(State(app): State<App>, Names(id): Names<String>) -> Result<Json<VectorStore>, Problem> {
    let wanted = id.clone();
    let found = app.collections().with_all(move |all| {
        let files = attached::list(&Store::open(all, &id)?.collection)?;
        Ok((shown(all, &id)?, files))
    });
    let (store, files) = found.await?;
    app.index_files(&wanted, &files);
    Ok(Json(store))
}

fn shown(all: &Collections, id: &str) -> Result<VectorStore, Problem> {
    let store = Store::open(all, id)?;
    match store.kept.store {
        None => Ok(VectorStore::of_collection(id, store.collection.info()?.disk_bytes)),
        Some(settings) => Ok(VectorStore::new(store.id, settings, &attached::list(&store.collection)?, now())),
    }
}

/// Changes the name, the expiry or the metadata of a vector store.
#[utoipa::path(
    post, path = "", operation_id = "modify_vector_store",
    request_body = UpdateStore,
    responses(
        (status = 200, description = "The store", body = VectorStore),
        (status = 404, description = "No such store", body = OpenAiError),
    )
)]
pub(crate) async fn modify(
    State(app): State<App>,
    Names(id): Names<String>,
    body: Body,
) -> Result<Json<VectorStore>, Problem> {
    let update: UpdateStore = body.json()?;
    let changed = app.collections().with_all(move |all| {
        let (store, _) = Store::own(all, &id)?;
        Kept::change(&store.collection, |kept| match &mut kept.store {
            Some(settings) => update.apply(settings, now()),
            None => Ok(()),
        })?;
        shown(all, &id)
    });
    Ok(Json(changed.await?))
}

/// Deletes a vector store; its files stay.
#[utoipa::path(
    delete, path = "", operation_id = "delete_vector_store",
    responses(
        (status = 200, description = "It is gone", body = Deleted),
        (status = 404, description = "No such store", body = OpenAiError),
    )
)]
pub(crate) async fn delete(State(app): State<App>, Names(id): Names<String>) -> Result<Json<Deleted>, Problem> {
    let (own, name) = (app.clone(), id.clone());
    let deleted = app.collections().with_all(move |all| {
        Store::own(all, &name)?;
        let _changing = own.indexing().change();
        own.indexing().forget(&name);
        match all.delete(&name)? {
            true => Ok(()),
            false => Err(Problem::new(Kind::NotFound, format!("there is no vector store '{name}'"))),
        }
    });
    deleted.await?;
    Ok(Json(Deleted { id, object: "vector_store.deleted", deleted: true }))
}
