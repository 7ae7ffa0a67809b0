//! Models that come and go: Ollama's pull and delete, and our own load, unload and alias.
//! Takes names of the hub and of the store; never a folder.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header;
use magray_engine::store::PullEvent;
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc::{Sender, channel};

use crate::server::{
    app::App,
    body::Body,
    errors::{OllamaError, Problem},
    fields::Fields,
    lines::answer_body,
    model_changes::{change_models, delete_model, load_model, pull_model, set_alias, unload_model},
    requests::models::{AliasRequest, DeleteRequest, LoadRequest, PullRequest},
};

/// A line of the answer to a pull.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OllamaPulling)]
struct Pulling {
    /// What is done; `success` in the last line.
    status: String,
    /// The file that is pulled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    digest: Option<String>,
    /// Its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    total: Option<u64>,
    /// Those that have come.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    completed: Option<u64>,
    /// In the last line of a pull that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
}

impl Pulling {
    fn status(status: impl Into<String>) -> Self {
        Self { status: status.into(), digest: None, total: None, completed: None, error: None }
    }

    fn of(event: PullEvent<'_>) -> Self {
        match event {
            PullEvent::Waiting { model } => Self::status(format!("waiting for another pull of {model}")),
            PullEvent::Replacing { model, reason } => Self::status(format!("pulling {model} again: {reason}")),
            PullEvent::Started { .. } | PullEvent::Listed { .. } => Self::status("pulling manifest"),
            PullEvent::File { name, done, total } => {
                let (digest, completed) = (Some(name.to_owned()), Some(done));
                Self { digest, total, completed, ..Self::status(format!("pulling {name}")) }
            }
            PullEvent::Retrying { what, reason, .. } => Self::status(format!("{what} failed and is retried: {reason}")),
            PullEvent::SourceFailed { source, reason } => Self::status(format!("the {source} failed: {reason}")),
            PullEvent::Finished { .. } => Self::status("writing manifest"),
        }
    }

    fn line(&self) -> Bytes {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|error| unreachable!("plain data: {error}"));
        line.push(b'\n');
        line.into()
    }
}

/// Pulls a model from the hub into the store, and serves it from then on. Unless `stream` is false, the answer has a line of
/// JSON for each step, as it is done.
#[utoipa::path(
    post, path = "",
    request_body = PullRequest,
    responses(
        (status = 200, description = "Lines of JSON, or one", body = Pulling, content_type = "application/x-ndjson"),
        (status = 503, description = "The hub does not answer", body = OllamaError),
    )
)]
pub(crate) async fn pull(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let request: PullRequest = body.json()?;
    if request.stream == Some(false) {
        change_models(&app, move |app| pull_model(app, &request.model, &mut |_| ())).await?;
        return Ok(axum::Json(Pulling::status("success")).into_response());
    }
    // Bounded: a client that does not read holds the pull up, and one that has left does not.
    let (lines, receiver) = channel(64);
    let pulling = async move {
        let own = lines.clone();
        let pulled =
            change_models(&app, move |app| pull_model(app, &request.model, &mut |event| tell(&own, event))).await;
        let last = match pulled {
            Ok(_) => Pulling::status("success"),
            Err(problem) => Pulling { error: Some(problem.message), ..Pulling::status("failed") },
        };
        // The client may have left.
        let _ = lines.send(last.line()).await;
    };
    tokio::spawn(pulling);
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], answer_body(receiver)).into_response())
}

/// Growing files are told as far as the client reads; everything else in any case.
fn tell(lines: &Sender<Bytes>, event: PullEvent<'_>) {
    let line = Pulling::of(event).line();
    match event {
        PullEvent::File { .. } => drop(lines.try_send(line)),
        _ => drop(lines.blocking_send(line)),
    }
}

/// Unloads a model and deletes its files from the store. Requests that it has taken are answered first.
#[utoipa::path(
    delete, path = "",
    request_body = DeleteRequest,
    responses((status = 200, description = "It is deleted"))
)]
pub(crate) async fn delete(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let request: DeleteRequest = body.json()?;
    change_models(&app, move |app| delete_model(app, &request.model)).await?;
    Ok(().into_response())
}

/// The models that are served after a change.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct ServedReport {
    /// Names of models.
    models: Vec<String>,
    aliases: Vec<AliasReport>,
}

/// Another name of a model.
#[derive(Debug, Serialize, JsonSchema, utoipa::ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct AliasReport {
    alias: String,
    model: String,
}

impl ServedReport {
    pub(crate) fn of(app: &App) -> Self {
        let alias =
            |(alias, number): (String, usize)| AliasReport { alias, model: app.models().get(number).name.clone() };
        Self {
            models: app.models().iter().map(|(_, model)| model.name.clone()).collect(),
            aliases: app.models().aliases().into_iter().map(alias).collect(),
        }
    }
}

/// Serves a model of the store; it comes into memory with its first request.
#[utoipa::path(
    post, path = "",
    request_body = LoadRequest,
    responses((status = 200, description = "The models that are served", body = ServedReport))
)]
pub(crate) async fn load(State(app): State<App>, Fields(request): Fields<LoadRequest>) -> Result<Response, Problem> {
    change_models(&app, move |app| load_model(app, &request.model)).await?;
    Ok(axum::Json(ServedReport::of(&app)).into_response())
}

/// Takes a model out of memory and does not serve it any more; its files stay. Requests that it has taken are answered first.
#[utoipa::path(
    post, path = "",
    request_body = LoadRequest,
    responses((status = 200, description = "The models that are served", body = ServedReport))
)]
pub(crate) async fn unload(State(app): State<App>, Fields(request): Fields<LoadRequest>) -> Result<Response, Problem> {
    change_models(&app, move |app| unload_model(app, &request.model)).await?;
    Ok(axum::Json(ServedReport::of(&app)).into_response())
}

/// Lets a name mean a model; without a model, the name means nothing any more.
#[utoipa::path(
    post, path = "",
    request_body = AliasRequest,
    responses((status = 200, description = "The models that are served", body = ServedReport))
)]
pub(crate) async fn alias(State(app): State<App>, Fields(request): Fields<AliasRequest>) -> Result<Response, Problem> {
    set_alias(&app, &request.alias, request.model.as_deref().filter(|model| !model.is_empty()))?;
    Ok(axum::Json(ServedReport::of(&app)).into_response())
}
