//! `POST /v1/evaluate`: critics judge a text.
//! Critics themselves are in the settings: a client names them and does not write them.

mod judging;

pub(in crate::server) use judging::Asked;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::HeaderMap;

use crate::{
    critics::Report,
    server::{
        app::App, body::Body, errors::Problem, keys::Access, requests::evaluate::EvaluateRequest, scope::RequestScope,
    },
};

/// Lets critics judge a text side by side: each one's score and reasons, and one score of all by weights and vetoes. Critics that
/// gave no verdict are named.
#[utoipa::path(
    post, path = "", operation_id = "evaluate",
    request_body = EvaluateRequest,
    responses((status = 200, description = "What the critics say", body = Report))
)]
pub(crate) async fn evaluate(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let request: EvaluateRequest = body.read(&app, |_, body| body.json()).await?;
    drop(body);
    let stores = request.store.unwrap_or(false);
    if stores {
        app.admit(&app.live(), &headers, Access::Change, scope.peer)?;
    }
    let asked = Asked {
        text: request.text,
        critics: request.critics.unwrap_or_default(),
        model: request.model,
        collection: request.collection,
        precedents: request.precedents,
        stores,
    };
    let report = app.evaluate(asked, &|_| ()).await?;
    Ok(axum::Json(report).into_response())
}
