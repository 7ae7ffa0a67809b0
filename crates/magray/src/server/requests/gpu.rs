//! What is sent to move models: JSON, or a form, whose fields are all texts.
//! Says nothing of which models there are.

use std::time::Duration;

use serde::Deserialize;

/// Which model is to move; the body may be empty.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub(crate) struct MoveRequest {
    /// Without it, all models.
    pub(crate) model: Option<String>,
}

/// Which model is to come, and how urgently; the body may be empty.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub(crate) struct PreheatRequest {
    /// Without it, all models.
    pub(crate) model: Option<String>,
    /// `high`, `normal` or `low`. A high one evicts models that count less, also those that compute or just came.
    pub(crate) priority: Option<String>,
}

/// How much models count when they compete for the memory of a GPU.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct PriorityRequest {
    /// `high`, `normal` or `low`.
    pub(crate) priority: String,
    /// Without it, all models.
    #[serde(default)]
    pub(crate) model: Option<String>,
}

/// Whether models stay on their GPU whatever needs its memory.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct PinRequest {
    /// True or false.
    pub(crate) pinned: Flag,
    /// Without it, all models.
    #[serde(default)]
    pub(crate) model: Option<String>,
}

/// True or false. A form has texts only.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum Flag {
    Bool(bool),
    Text(String),
}

impl Flag {
    pub(crate) fn read(&self) -> Result<bool, &'static str> {
        match self {
            Self::Bool(flag) => Ok(*flag),
            Self::Text(text) => text.trim().parse().map_err(|_| "pinned is true or false"),
        }
    }
}

/// How long models stay on a GPU without being used.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub(crate) struct TimeoutRequest {
    /// Seconds; 0: as soon as nothing of it waits or runs; `never`: until it is offloaded.
    #[serde(alias = "timeout_seconds")]
    pub(crate) timeout: Timeout,
    /// Without it, all models.
    #[serde(default)]
    pub(crate) model: Option<String>,
}

/// Seconds, or `never`. A form has texts only.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum Timeout {
    Seconds(f64),
    Text(String),
}

impl Timeout {
    /// More than this is no timeout but `never`.
    const SECONDS_MAX: f64 = 1e9;

    pub(crate) fn read(&self) -> Result<Option<Duration>, &'static str> {
        let seconds = match self {
            Self::Seconds(seconds) => Some(*seconds),
            Self::Text(text) if text.trim().eq_ignore_ascii_case("never") => return Ok(None),
            Self::Text(text) => text.trim().parse().ok(),
        };
        let seconds = seconds.filter(|seconds: &f64| (0.0..=Self::SECONDS_MAX).contains(seconds));
        let wrong = "timeout is a number of seconds from 0 on, or never";
        seconds.map(|seconds| Some(Duration::from_secs_f64(seconds))).ok_or(wrong)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FormError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("the form does not fit: {0}")]
    Form(#[from] serde_urlencoded::de::Error),
}

/// A body that is a form, JSON, or nothing at all; its content type is what the client says it is.
pub(crate) fn form_or_json<T: for<'a> Deserialize<'a>>(content_type: &str, body: &[u8]) -> Result<T, FormError> {
    // Some clients name the form although they send JSON: an object starts with a brace, and no form of ours does.
    let is_json = body.trim_ascii_start().starts_with(b"{") || content_type.starts_with("application/json");
    if is_json && !body.is_empty() {
        return Ok(super::read(body)?);
    }
    Ok(serde_urlencoded::from_bytes(body)?)
}
