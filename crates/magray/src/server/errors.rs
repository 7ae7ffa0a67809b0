//! Why a request is refused, and the shape that each API has for it.
//! Knows no route: the table of routes names the shape, so that a wrong key and a wrong body look alike.

use std::{borrow::Cow, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use magray_engine::{
    EmbedError,
    engine::{EngineError, UnknownPriority},
};
use serde::Serialize;

/// Why a request is not answered. As a response it is a status without a body; [`Problem::render`] gives it the shape of
/// the API.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    /// For the client: what is wrong and what to do.
    pub(crate) message: String,
    /// The field that is wrong, by the name that the API has for it.
    pub(crate) param: Option<Cow<'static, str>>,
    pub(crate) retry_after: Option<Duration>,
}

/// What a client can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No JSON, or no UTF-8.
    Malformed,
    /// JSON that does not fit the API.
    Invalid,
    /// Not a single text.
    Empty,
    /// More than is taken: of bytes, texts or tokens.
    TooLarge,
    /// A body in a `content-encoding` that is not read.
    UnknownCoding,
    Unauthorised,
    Forbidden,
    NoRoute,
    NoSuchModel,
    /// A collection, a point, an alias or a snapshot.
    NotFound,
    /// A name that is taken.
    Exists,
    /// The disk of the collections.
    Full,
    WrongMethod,
    /// The queue or the memory for requests is full.
    Busy,
    TooOften,
    TooSlow,
    /// Not computed in the time that a request has.
    Expired,
    /// No device can compute it now, or the server is stopping.
    Unavailable,
    Internal,
}

impl Kind {
    pub(crate) const ALL: [Self; 19] = [
        Self::Malformed,
        Self::Invalid,
        Self::Empty,
        Self::TooLarge,
        Self::UnknownCoding,
        Self::Unauthorised,
        Self::Forbidden,
        Self::NoRoute,
        Self::NoSuchModel,
        Self::NotFound,
        Self::Exists,
        Self::Full,
        Self::WrongMethod,
        Self::Busy,
        Self::TooOften,
        Self::TooSlow,
        Self::Expired,
        Self::Unavailable,
        Self::Internal,
    ];

    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Invalid | Self::Empty => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownCoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unauthorised => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NoRoute | Self::NoSuchModel | Self::NotFound => StatusCode::NOT_FOUND,
            Self::Exists => StatusCode::CONFLICT,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::Busy | Self::TooOften => StatusCode::TOO_MANY_REQUESTS,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Expired | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// For programs and metrics; a code never changes its meaning.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Invalid => "invalid",
            Self::Empty => "empty",
            Self::TooLarge => "too_large",
            Self::UnknownCoding => "unknown_encoding",
            Self::Unauthorised => "invalid_api_key",
            Self::Forbidden => "forbidden",
            Self::NoRoute => "not_found",
            Self::NoSuchModel => "model_not_found",
            Self::NotFound => "no_such_item",
            Self::Exists => "already_exists",
            Self::Full => "disk_full",
            Self::WrongMethod => "method_not_allowed",
            Self::Busy => "overloaded",
            Self::TooOften => "rate_limit_exceeded",
            Self::TooSlow => "request_timeout",
            Self::Expired => "timeout",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }

    fn openai_type(self) -> &'static str {
        match self {
            Self::Unauthorised => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::Busy | Self::TooOften => "rate_limit_error",
            Self::Expired | Self::Unavailable | Self::Internal | Self::Full => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(self) -> &'static str {
        match self {
            Self::Unauthorised => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NoRoute | Self::NoSuchModel | Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::TooOften => "rate_limit_error",
            Self::Busy | Self::Unavailable => "overloaded_error",
            Self::Expired | Self::TooSlow => "timeout_error",
            Self::Internal | Self::Full => "api_error",
            _ => "invalid_request_error",
        }
    }

    fn tei_type(self) -> &'static str {
        match self {
            Self::Busy | Self::TooOften => "overloaded",
            Self::Expired | Self::Internal | Self::Full => "backend",
            Self::Unavailable => "unhealthy",
            Self::Empty => "empty",
            _ => "validation",
        }
    }
}

impl Problem {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None }
    }

    pub(crate) fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message).about(param)
    }

    pub(crate) fn too_large(param: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::TooLarge, message).about(param)
    }

    /// With the field that is meant, where it names none.
    pub(crate) fn about(self, param: impl Into<Cow<'static, str>>) -> Self {
        Self { param: self.param.or_else(|| Some(param.into())), ..self }
    }

    pub(crate) fn busy(kind: Kind, message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(kind, message) }
    }

    /// As the API has it: TEI answers 400 where there is no text, OpenAI and Qdrant to every wrong field.
    fn status_in(&self, shape: Shape) -> StatusCode {
        match (self.kind, shape) {
            (Kind::Empty, Shape::Tei) | (Kind::Invalid | Kind::Empty, Shape::OpenAi | Shape::Anthropic) => {
                StatusCode::BAD_REQUEST
            }
            (Kind::TooLarge, Shape::OpenAi | Shape::Anthropic) if self.param.is_some() => StatusCode::BAD_REQUEST,
            (Kind::Invalid | Kind::Empty, Shape::Qdrant) => StatusCode::BAD_REQUEST,
            (kind, _) => kind.status(),
        }
    }

    pub(crate) fn render(&self, shape: Shape) -> Response {
        let body = match shape {
            Shape::OpenAi => json(&OpenAiError::from(self)),
            Shape::Tei => json(&TeiError { error: self.message.clone(), error_type: self.kind.tei_type().into() }),
            Shape::Cohere => json(&CohereError { message: self.message.clone() }),
            Shape::Anthropic => json(&AnthropicError::from(self)),
            Shape::Ollama => json(&OllamaError { error: self.message.clone() }),
            Shape::Qdrant => json(&QdrantError::from(self)),
            Shape::Plain => json(&PlainError { error: self.message.clone(), code: self.kind.code().into() }),
        };
        let mut response = (self.status_in(shape), [(header::CONTENT_TYPE, JSON)], body).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            // The header has whole seconds; the milliseconds stand in one beside it.
            let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000).max(1)));
            headers.insert("retry-after-ms", HeaderValue::from(millis));
        }
        if self.kind == Kind::Unauthorised {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.kind == Kind::UnknownCoding {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd"));
        }
        response
    }
}

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).unwrap_or_else(|error| unreachable!("strings can be written as JSON: {error}"))
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The answer where a handler panicked; the panic is in the log.
pub(crate) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::new(Kind::Internal, "the server failed to answer this request: report it as a defect").into_response()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    OpenAi,
    Tei,
    Cohere,
    Ollama,
    Anthropic,
    Qdrant,
    Plain,
}

impl From<UnknownPriority> for Problem {
    fn from(unknown: UnknownPriority) -> Self {
        Self::new(Kind::Malformed, format!("{unknown}: send one of these, or none")).about("priority")
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::Full { retry_after } => Self::busy(Kind::Busy, message, retry_after),
            EngineError::TooLarge => Self::new(Kind::TooLarge, message),
            EngineError::Expired => Self::busy(Kind::Expired, message, Duration::from_secs(1)),
            EngineError::Text(error) => error.into(),
            EngineError::NoText | EngineError::TokenKinds { .. } | EngineError::NoPrompt(_) => {
                Self::new(Kind::Invalid, message)
            }
            EngineError::NoDevice { .. } | EngineError::Draining => {
                Self::busy(Kind::Unavailable, message, Duration::from_secs(1))
            }
            EngineError::NotYet { .. } | EngineError::Overruled => {
                Self::busy(Kind::Expired, message, Duration::from_secs(1))
            }
            EngineError::NoModel(_) => {
                Self::new(Kind::NoSuchModel, "the model was deleted or unloaded just now").about("model")
            }
            EngineError::Poison | EngineError::Panicked => Self::new(Kind::Internal, message),
        }
    }
}

impl From<EmbedError> for Problem {
    fn from(error: EmbedError) -> Self {
        let kind = match error {
            EmbedError::Gpu(_) | EmbedError::Executor(_) => Kind::Unavailable,
            EmbedError::UnknownPrompt { .. } => return Self::invalid("prompt_name", error.to_string()),
            EmbedError::WrongTask { .. } | EmbedError::NoTokenizer => return Self::invalid("model", error.to_string()),
            _ => Kind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        match error.classify() {
            serde_json::error::Category::Data => Self::new(Kind::Invalid, format!("the request does not fit: {error}")),
            _ => Self::new(Kind::Malformed, format!("the request is not JSON: {error}")),
        }
    }
}

/// An error in the shape of OpenAI's API.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct OpenAiError {
    error: OpenAiErrorBody,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct OpenAiErrorBody {
    message: String,
    r#type: String,
    param: Option<String>,
    code: Option<String>,
}

impl From<&Problem> for OpenAiError {
    fn from(problem: &Problem) -> Self {
        Self {
            error: OpenAiErrorBody {
                message: problem.message.clone(),
                r#type: problem.kind.openai_type().to_owned(),
                param: problem.param.as_deref().map(str::to_owned),
                code: Some(problem.kind.code().to_owned()),
            },
        }
    }
}

/// An error in the shape of TEI's API.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct TeiError {
    error: String,
    error_type: String,
}

/// An error in the shape of Cohere's API.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct CohereError {
    message: String,
}

/// An error in the shape of Ollama's API.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct OllamaError {
    error: String,
}

/// An error in the shape of Anthropic's API.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct AnthropicError {
    /// `error`.
    r#type: String,
    error: AnthropicErrorBody,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct AnthropicErrorBody {
    r#type: String,
    message: String,
}

impl From<&Problem> for AnthropicError {
    fn from(problem: &Problem) -> Self {
        let (kind, message) = (problem.kind.anthropic_type().to_owned(), problem.message.clone());
        Self { r#type: "error".to_owned(), error: AnthropicErrorBody { r#type: kind, message } }
    }
}

/// An error in the shape of Qdrant's API.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct QdrantError {
    status: QdrantStatus,
    time: f64,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct QdrantStatus {
    error: String,
}

impl From<&Problem> for QdrantError {
    fn from(problem: &Problem) -> Self {
        Self { status: QdrantStatus { error: problem.message.clone() }, time: 0.0 }
    }
}

/// An error of magray's own routes.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct PlainError {
    error: String,
    /// For programs.
    code: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_by_their_index() {
        assert!(Kind::ALL.into_iter().enumerate().all(|(index, kind)| kind as usize == index));
    }

    #[test]
    fn a_refusal_says_when_to_retry() {
        let problem = Problem::busy(Kind::Busy, "later", Duration::from_millis(120));
        let response = problem.render(Shape::OpenAi);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["retry-after-ms"], "120");
    }
}
