//! What the page asks: what there is, how the server is at this moment and from then on.
//! Changes nothing: what the page changes goes through the routes that all clients have.

mod events;
mod maps;

pub(crate) use events::{__path_events, events, feed};
pub(crate) use maps::{__path_map, __path_values, map, values};

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header};
use serde::Serialize;

use crate::{
    control::Snapshot,
    server::{
        app::App,
        errors::{Kind, Problem},
        keys::Access,
        models::Does,
        scope::RequestScope,
    },
};

/// What there is, and what the caller may do.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Features {
    magray: &'static str,
    /// Whether the caller may read; without a key that is needed, or with a wrong one, it may not.
    may_read: bool,
    /// Whether the caller may change anything.
    may_change: bool,
    /// The name of the caller's key.
    key: Option<String>,
    /// Whether faults of simulated devices can be injected.
    faults: bool,
    /// Whether critics judge texts.
    evaluate: bool,
    /// The models; none for a caller that may not read.
    models: Vec<FeatureModel>,
}

/// A model.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct FeatureModel {
    name: String,
    /// `embed`, `rank`, `classify` or `generate`.
    does: &'static str,
    /// Numbers of a vector, or labels.
    outputs: usize,
    max_tokens: usize,
}

/// Says what there is, and what the caller may do.
#[utoipa::path(get, path = "", responses((status = 200, description = "What there is", body = Features)))]
pub(crate) async fn features(
    State(app): State<App>,
    Extension(scope): Extension<RequestScope>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    check_own_page(&headers)?;
    let live = app.live();
    let reader = app.admit(&live, &headers, Access::Read, scope.peer);
    // A wrong key counts once.
    let may_change = reader.is_ok() && app.admit(&live, &headers, Access::Change, scope.peer).is_ok();
    let model = |(_, model): (usize, &crate::server::models::Model)| FeatureModel {
        name: model.name.clone(),
        does: match model.does {
            Does::Embed => "embed",
            Does::Rank => "rank",
            Does::Classify => "classify",
            Does::Generate => "generate",
        },
        outputs: model.outputs,
        max_tokens: model.max_tokens,
    };
    let page = app.page();
    let features = Features {
        magray: env!("CARGO_PKG_VERSION"),
        may_read: reader.is_ok(),
        may_change,
        faults: page.takes_faults && reader.is_ok(),
        evaluate: page.has_critics,
        models: if reader.is_ok() { app.models().iter().map(model).collect() } else { Vec::new() },
        key: reader.ok().and_then(|caller| caller.name.map(|name| name.to_string())),
    };
    Ok(([(header::CACHE_CONTROL, "no-store")], axum::Json(features)).into_response())
}

/// Shows the server at this moment: the engine, its memory by owner, the last minute, incidents, moves of models.
#[utoipa::path(get, path = "", responses((status = 200, description = "The server at this moment", body = Snapshot)))]
pub(crate) async fn state(State(app): State<App>, headers: HeaderMap) -> Result<Response, Problem> {
    check_own_page(&headers)?;
    Ok(([(header::CACHE_CONTROL, "no-store")], axum::Json(app.snapshot())).into_response())
}

/// Refuses what a page of another origin lets a browser ask, also where it could not read the answer.
fn check_own_page(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get("sec-fetch-site").map(|site| site.as_bytes()) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Problem::new(Kind::Forbidden, "only the server's own page may ask this")),
    }
}
