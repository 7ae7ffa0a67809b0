//! Batches: files that are put into a store together.
//! A batch is what the records of its files say: there is no record of its own.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use magray_index::Collections;

use super::{Store, files};
use crate::{
    server::{
        app::App,
        body::Body,
        errors::{Kind, OpenAiError, Problem},
        parameters::{Names, QueryFields},
    },
    vector_stores::{
        answers::{FileBatch, Page, VectorStoreFile},
        attached::{self, AttachedFile, Status},
        ids::Of,
        page::ListQuery,
        requests::CreateBatch,
    },
};

/// Puts several files into a vector store. They are split and embedded after the answer.
#[utoipa::path(
    post, path = "", operation_id = "create_vector_store_file_batch",
    request_body = CreateBatch,
    responses(
        (status = 200, description = "The batch", body = FileBatch),
        (status = 404, description = "No such store or file", body = OpenAiError),
    )
)]
pub(crate) async fn create(
    State(app): State<App>,
    Names(id): Names<String>,
    body: Body,
) -> Result<Json<FileBatch>, Problem> {
    let files = body.json::<CreateBatch>()?.into_files()?;
    let number = app.indexing().next_number();
    let (own, name) = (app.clone(), id.clone());
    let attached = app.collections().with_all(move |all| {
        let (store, _) = Store::own(all, &name)?;
        store.attach((&own, all), files, Some(Of::Batch.id(number)))
    });
    let files = attached.await?;
    app.index_files(&id, &files);
    Ok(Json(FileBatch::new(&id, number, &files)))
}

/// Shows a batch of files.
#[utoipa::path(
    get, path = "", operation_id = "retrieve_vector_store_file_batch",
    responses(
        (status = 200, description = "The batch", body = FileBatch),
        (status = 404, description = "No such store or batch", body = OpenAiError),
    )
)]
pub(crate) async fn retrieve(
    State(app): State<App>,
    Names((id, batch_id)): Names<(String, String)>,
) -> Result<Response, Problem> {
    let name = id.clone();
    let found = app.collections().with_all(move |all| find(all, &name, &batch_id));
    let (_, number, files) = found.await?;
    app.index_files(&id, &files);
    let batch = FileBatch::new(&id, number, &files);
    Ok(files::polled(batch.status, Json(batch).into_response()))
}

/// Ends the indexing of those files of a batch that are not indexed yet.
#[utoipa::path(
    post, path = "", operation_id = "cancel_vector_store_file_batch",
    responses(
        (status = 200, description = "The batch", body = FileBatch),
        (status = 404, description = "No such store or batch", body = OpenAiError),
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    Names((id, batch_id)): Names<(String, String)>,
) -> Result<Json<FileBatch>, Problem> {
    let (own, name) = (app.clone(), id.clone());
    let cancelled = app.collections().with_all(move |all| {
        Store::own(all, &name)?;
        let _changing = own.indexing().change();
        let (store, number, mut files) = find(all, &name, &batch_id)?;
        let mut changed = Vec::new();
        for file in files.iter_mut().filter(|file| file.status == Status::InProgress) {
            attached::delete_chunks(&store.collection, &file.file_id)?;
            file.status = Status::Cancelled;
            changed.push(file.clone());
        }
        attached::put(&store.collection, &changed)?;
        Ok((number, files))
    });
    let (number, files) = cancelled.await?;
    Ok(Json(FileBatch::new(&id, number, &files)))
}

/// Lists the files of a batch.
#[utoipa::path(
    get, path = "", operation_id = "list_files_in_vector_store_batch",
    params(ListQuery),
    responses(
        (status = 200, description = "A page of them", body = Page<VectorStoreFile>),
        (status = 404, description = "No such store or batch", body = OpenAiError),
    )
)]
pub(crate) async fn list(
    State(app): State<App>,
    Names((id, batch_id)): Names<(String, String)>,
    QueryFields(query): QueryFields<ListQuery>,
) -> Result<Json<Page<VectorStoreFile>>, Problem> {
    let (name, wanted) = (id.clone(), batch_id.clone());
    app.collections().with_all(move |all| find(all, &name, &wanted).map(drop)).await?;
    files::page(app, id, query, move |file| file.batch_id.as_ref() == Some(&batch_id)).await
}

/// A batch is there as long as one of its files is.
fn find(all: &Collections, id: &str, batch_id: &str) -> Result<(Store, u64, Vec<AttachedFile>), Problem> {
    let store = Store::open(all, id)?;
    let mut files = attached::list(&store.collection)?;
    files.retain(|file| file.batch_id.as_deref() == Some(batch_id));
    let number = Of::Batch.number(batch_id).filter(|_| !files.is_empty());
    let missing = || Problem::new(Kind::NotFound, format!("there is no batch '{batch_id}' in this vector store"));
    Ok((store, number.ok_or_else(missing)?, files))
}
