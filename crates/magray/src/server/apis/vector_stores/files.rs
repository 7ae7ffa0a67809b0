//! Files of a store: put in, listed, shown, changed, taken out; their texts.
//! Indexing goes on after a file was put in; its status tells how far it is.

use std::path::Path;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use magray_index::files::{FileBytes, FileLimits};

use super::{PAGE, Store};
use crate::{
    server::{
        app::App,
        body::Body,
        errors::{Kind, OpenAiError, Problem},
        index_jobs::now,
        parameters::{Names, QueryFields},
        reservation,
    },
    vector_stores::{
        answers::{ContentPage, Deleted, Page, VectorStoreFile},
        attached::{self, AttachedFile, Status},
        ids::Of,
        page::ListQuery,
        requests::{AttachFile, UpdateFile, checked_attributes},
        uploaded,
    },
};

/// Puts a file into a vector store. It is split and embedded after the answer.
#[utoipa::path(
    post, path = "", operation_id = "create_vector_store_file",
    request_body = AttachFile,
    responses(
        (status = 200, description = "The file of the store", body = VectorStoreFile),
        (status = 404, description = "No such store or file", body = OpenAiError),
    )
)]
pub(crate) async fn attach(
    State(app): State<App>,
    Names(id): Names<String>,
    body: Body,
) -> Result<Json<VectorStoreFile>, Problem> {
    let file: AttachFile = body.json()?;
    let (own, name) = (app.clone(), id.clone());
    let attached =
        app.collections().with_all(move |all| Store::own(all, &name)?.0.attach((&own, all), vec![file], None));
    let files = attached.await?;
    app.index_files(&id, &files);
    let file = files.into_iter().next();
    Ok(Json(VectorStoreFile::new(&id, file.unwrap_or_else(|| unreachable!("one was given")))))
}

/// Lists the files of a vector store.
#[utoipa::path(
    get, path = "", operation_id = "list_vector_store_files",
    params(ListQuery),
    responses(
        (status = 200, description = "A page of them", body = Page<VectorStoreFile>),
        (status = 404, description = "No such store", body = OpenAiError),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    Names(id): Names<String>,
    QueryFields(query): QueryFields<ListQuery>,
) -> Result<Json<Page<VectorStoreFile>>, Problem> {
    page(app, id, query, |_| true).await
}

/// A page of those files of a store that are wanted.
pub(super) async fn page(
    app: App,
    id: String,
    query: ListQuery,
    is_wanted: impl Fn(&AttachedFile) -> bool + Send + 'static,
) -> Result<Json<Page<VectorStoreFile>>, Problem> {
    let name = id.clone();
    let files = app.collections().with_all(move |all| {
        let mut files = attached::list(&Store::open(all, &name)?.collection)?;
        files.retain(is_wanted);
        Ok(files)
    });
    let mut files = files.await?;
    app.index_files(&id, &files);
    files.retain(|file| query.filter.is_none_or(|status| file.status == status));
    let files = files.into_iter().map(|file| VectorStoreFile::new(&id, file)).collect();
    Ok(Json(query.page(files, VectorStoreFile::id, PAGE)?))
}

/// Shows a file of a vector store.
#[utoipa::path(
    get, path = "", operation_id = "retrieve_vector_store_file",
    responses(
        (status = 200, description = "The file of the store", body = VectorStoreFile),
        (status = 404, description = "No such store or file", body = OpenAiError),
    )
)]
pub(crate) async fn retrieve(
    State(app): State<App>,
    Names((id, file_id)): Names<(String, String)>,
) -> Result<Response, Problem> {
    let name = id.clone();
    let found = app.collections().with_all(move |all| Store::open(all, &name)?.file(&file_id));
    let file = found.await?;
    app.index_files(&id, [&file]);
    Ok(polled(file.status, Json(VectorStoreFile::new(&id, file)).into_response()))
}

/// Tells clients that wait for the end of indexing when to ask again.
pub(super) fn polled(status: Status, mut response: Response) -> Response {
    const POLL_AFTER_MS: &str = "200";
    if status == Status::InProgress {
        let value = http::HeaderValue::from_static(POLL_AFTER_MS);
        response.headers_mut().insert("openai-poll-after-ms", value);
    }
    response
}

/// Changes the attributes of a file of a vector store.
#[utoipa::path(
    post, path = "", operation_id = "update_vector_store_file",
    request_body = UpdateFile,
    responses(
        (status = 200, description = "The file of the store", body = VectorStoreFile),
        (status = 404, description = "No such store or file", body = OpenAiError),
    )
)]
pub(crate) async fn update(
    State(app): State<App>,
    Names((id, file_id)): Names<(String, String)>,
    body: Body,
) -> Result<Json<VectorStoreFile>, Problem> {
    let update: UpdateFile = body.json()?;
    let attributes = checked_attributes(update.attributes.unwrap_or_default());
    let attributes = attributes.map_err(|error| Problem::from(error).about("attributes"))?;
    let (own, name) = (app.clone(), id.clone());
    let changed = app.collections().with_all(move |all| {
        let (store, _) = Store::own(all, &name)?;
        let _changing = own.indexing().change();
        store.file(&file_id)?;
        attached::set_attributes(&store.collection, &file_id, attributes)?;
        store.file(&file_id)
    });
    Ok(Json(VectorStoreFile::new(&id, changed.await?)))
}

/// Takes a file out of a vector store; the file itself stays.
#[utoipa::path(
    delete, path = "", operation_id = "delete_vector_store_file",
    responses(
        (status = 200, description = "It is gone", body = Deleted),
        (status = 404, description = "No such store or file", body = OpenAiError),
    )
)]
pub(crate) async fn delete(
    State(app): State<App>,
    Names((id, file_id)): Names<(String, String)>,
) -> Result<Json<Deleted>, Problem> {
    let (own, wanted) = (app.clone(), file_id.clone());
    let deleted = app.collections().with_all(move |all| {
        let (store, _) = Store::own(all, &id)?;
        let _changing = own.indexing().change();
        store.file(&wanted)?;
        Ok(attached::delete(&store.collection, &wanted)?)
    });
    deleted.await?;
    Ok(Json(Deleted { id: file_id, object: "vector_store.file.deleted", deleted: true }))
}

/// Returns the text of a file of a vector store.
#[utoipa::path(
    get, path = "", operation_id = "retrieve_vector_store_file_content",
    responses(
        (status = 200, description = "Its text", body = ContentPage),
        (status = 404, description = "No such store or file", body = OpenAiError),
    )
)]
pub(crate) async fn content(
    State(app): State<App>,
    Names((id, file_id)): Names<(String, String)>,
) -> Result<Json<ContentPage>, Problem> {
    let admission = std::sync::Arc::clone(app.admission());
    let read = app.collections().with_all(move |all| {
        let record = Store::open(all, &id)?.file(&file_id)?;
        let gone = || Problem::new(Kind::NotFound, format!("the file '{file_id}' was deleted"));
        let file = uploaded::find(all, Of::File.number(&file_id).ok_or_else(gone)?, now())?.ok_or_else(gone)?;
        let held = admission.hold(file.bytes as u64)?;
        let limits = FileLimits::default();
        let bytes = FileBytes::new(uploaded::content(all, &file)?, &limits);
        let document = bytes.and_then(|bytes| bytes.document(Path::new(&record.filename), &limits));
        let document = document.map_err(|refused| Problem::new(Kind::Invalid, format!("the file {refused}")))?;
        Ok((document.text, held))
    });
    let (text, held) = read.await?;
    reservation::keep_answer(held);
    Ok(Json(ContentPage::new(text)))
}
