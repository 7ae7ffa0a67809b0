//! The names in the path of a request, and the fields of its query.
//! Knows none of them: handlers say which they expect.

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::{
    app::App,
    errors::{Kind, Problem},
};

/// The names in the path.
pub(crate) struct Names<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Names<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let wrong = |reason| Problem::new(Kind::Malformed, format!("the path is wrong: {reason}"));
        Path::from_request_parts(parts, app).await.map(|Path(names)| Self(names)).map_err(wrong)
    }
}

/// The fields behind the question mark.
pub(crate) struct QueryFields<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for QueryFields<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let wrong = |error| Problem::new(Kind::Invalid, format!("the query does not fit: {error}"));
        serde_urlencoded::from_str(parts.uri.query().unwrap_or_default()).map(Self).map_err(wrong)
    }
}
