//! The v2 protocol, also called open inference, over HTTP: what clients of Triton and KServe ask.
//! Takes texts and gives numbers; language models are served by the APIs for chats.

mod answers;
mod reading;

use axum::{
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use magray_engine::engine::Answer;

use self::{
    answers::{Head, config_of, described, state_of},
    reading::{Asked, json_bytes, read},
};
use super::super::{
    app::App,
    body::Body,
    errors::{Kind, PlainError, Problem},
    models::{Does, Model},
    requests::open_inference::InferRequest,
    vectors::{sigmoid, softmax},
    writing::Json,
};

/// The only one that a model has.
const VERSION: &str = "1";
/// The header that tells the length of the JSON of a body whose tensors follow as bytes.
const JSON_LENGTH: &str = "inference-header-content-length";

type Name = Result<Path<String>, PathRejection>;
type TwoNames = Result<Path<(String, String)>, PathRejection>;

/// What serves.
#[utoipa::path(get, path = "", operation_id = "v2_server", responses((status = 200, description = "Name, version and extensions of the protocol", body = doc::Server)))]
pub(crate) async fn server() -> Response {
    let mut json = Json::default();
    json.raw(r#"{"name":"magray","version":"#).text(env!("CARGO_PKG_VERSION"));
    json.raw(r#","extensions":["binary_tensor_data","model_configuration","model_repository"]}"#);
    json.into_response()
}

/// Whether the process answers at all; says nothing of devices.
#[utoipa::path(get, path = "", operation_id = "v2_live", responses((status = 200, description = "The process answers")))]
pub(crate) async fn live() -> StatusCode {
    StatusCode::OK
}

/// Whether a request can be computed now: true after a real pass through the device in use.
#[utoipa::path(
    get, path = "",
    operation_id = "v2_ready",
    responses(
        (status = 200, description = "A request can be computed"),
        (status = 503, description = "No device computes, or the server is stopping", body = PlainError),
    )
)]
pub(crate) async fn ready(State(app): State<App>) -> Result<StatusCode, Problem> {
    app.check_health().await?;
    Ok(StatusCode::OK)
}

/// Lists the models.
#[utoipa::path(
    post, path = "",
    operation_id = "v2_index",
    request_body = doc::IndexRequest,
    responses((status = 200, description = "The models", body = Vec<doc::Indexed>))
)]
pub(crate) async fn index(State(app): State<App>, _: Body) -> Response {
    let mut json = Json::default();
    json.list(app.models().iter(), |json, (_, model)| state_of(json, &model.name));
    json.into_response()
}

/// Defines a handler for each of the ways in which a path names a model.
macro_rules! by_name {
    (
        $(#[$doc:meta])* $method:ident ($($body:tt)*) ($($answer:tt)*) $act:ident ($($argument:ident: $type:ty),*):
        $plain:ident $plain_id:literal, $version:ident $version_id:literal, $hub:ident $hub_id:literal
    ) => {
        $(#[$doc])*
        #[utoipa::path(
            $method, path = "", operation_id = $plain_id,
            params(("model" = String, Path, description = "Its name")), $($body)* responses($($answer)*)
        )]
        pub(crate) async fn $plain(State(app): State<App>, name: Name $(, $argument: $type)*) -> Result<Response, Problem> {
            let Path(name) = name.map_err(no_name)?;
            $act(app, name $(, $argument)*).await
        }

        $(#[$doc])*
        #[utoipa::path(
            $method, path = "", operation_id = $version_id,
            params(("model" = String, Path, description = "Its name"), ("version" = String, Path, description = "1")),
            $($body)* responses($($answer)*)
        )]
        pub(crate) async fn $version(State(app): State<App>, name: TwoNames $(, $argument: $type)*) -> Result<Response, Problem> {
            let Path((name, version)) = name.map_err(no_name)?;
            check_version(&version)?;
            $act(app, name $(, $argument)*).await
        }

        $(#[$doc])*
        #[utoipa::path(
            $method, path = "", operation_id = $hub_id,
            params(("organisation" = String, Path, description = "Whose it is"), ("model" = String, Path, description = "Its name")),
            $($body)* responses($($answer)*)
        )]
        pub(crate) async fn $hub(State(app): State<App>, name: TwoNames $(, $argument: $type)*) -> Result<Response, Problem> {
            let Path((organisation, name)) = name.map_err(no_name)?;
            $act(app, format!("{organisation}/{name}") $(, $argument)*).await
        }
    };
}

by_name! {
    /// Describes the tensors of a model.
    get () (
        (status = 200, description = "Its inputs and outputs", body = doc::Model),
        (status = 400, description = "The name is no text", body = PlainError),
        (status = 404, description = "No such model", body = PlainError),
        (status = 422, description = "It generates text, which this protocol has no form for", body = PlainError),
    ) describe(): model "v2_model", version "v2_version", hub_model "v2_hub_model"
}

by_name! {
    /// Whether a model is served. Its first request loads it.
    get () (
        (status = 200, description = "It is served"),
        (status = 400, description = "The name is no text", body = PlainError),
        (status = 404, description = "No such model", body = PlainError),
        (status = 503, description = "The server is stopping", body = PlainError),
    ) check_ready(): model_ready "v2_model_ready", version_ready "v2_version_ready", hub_model_ready "v2_hub_model_ready"
}

by_name! {
    /// Describes a model as Triton's configuration does.
    get () (
        (status = 200, description = "Its configuration", body = doc::Config),
        (status = 400, description = "The name is no text", body = PlainError),
        (status = 404, description = "No such model", body = PlainError),
        (status = 422, description = "It generates text, which this protocol has no form for", body = PlainError),
    ) configure(): config "v2_config", version_config "v2_version_config", hub_config "v2_hub_config"
}

by_name! {
    /// Computes. Tensors may follow the JSON as bytes; the header `inference-header-content-length` is then the JSON's length.
    post (request_body = InferRequest<'_>,) (
        (status = 200, description = "The output", body = doc::Inferred),
        (status = 404, description = "No such model", body = PlainError),
    ) compute(headers: HeaderMap, body: Body): infer "v2_infer", version_infer "v2_version_infer", hub_infer "v2_hub_infer"
}

fn no_name(reason: PathRejection) -> Problem {
    Problem::new(Kind::Malformed, format!("the path names no model: {reason}"))
}

fn check_version(version: &str) -> Result<(), Problem> {
    if version == VERSION {
        return Ok(());
    }
    let shown: String = version.chars().take(20).collect();
    Err(Problem::new(Kind::NoSuchModel, format!("models have the version {VERSION} alone, and not '{shown}'")))
}

/// A model that this protocol can be used with.
fn find<'a>(app: &'a App, name: &str) -> Result<(usize, &'a Model), Problem> {
    let number = app.models().named(name)?;
    let model = app.models().get(number);
    if model.does == Does::Generate {
        let message = "this model generates text, which the v2 protocol has no form for: use /v1/chat/completions";
        return Err(Problem::invalid("model", message));
    }
    Ok((number, model))
}

async fn describe(app: App, name: String) -> Result<Response, Problem> {
    Ok(described(find(&app, &name)?.1).into_response())
}

async fn configure(app: App, name: String) -> Result<Response, Problem> {
    Ok(config_of(find(&app, &name)?.1).into_response())
}

async fn check_ready(app: App, name: String) -> Result<Response, Problem> {
    app.models().named(&name)?;
    match app.is_draining() {
        true => Err(Problem::new(Kind::Unavailable, "the server is stopping")),
        false => Ok(StatusCode::OK.into_response()),
    }
}

async fn compute(app: App, name: String, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let json_bytes = json_bytes(&headers, body.len())?;
    let (asked, head) = body.read(&app, move |app, body| read(app, &name, body.bytes().split_at(json_bytes))).await?;
    let json_bytes = head.json_bytes();
    let answer = match asked {
        Asked::Embed { read, scaling } => {
            let write = move |answer: &Answer| head.written(answer.rows().map(|row| scaling.apply(row)));
            let (json, computed) = app.compute(read).await?.write(write).await?;
            computed.with_headers(json.into_response())
        }
        Asked::Classify { read } => {
            let classes = |row: &[f32]| if let [one] = row { vec![sigmoid(*one)] } else { softmax(row) };
            let write = move |answer: &Answer| head.written(answer.rows().map(classes));
            let (json, computed) = app.compute(read).await?.write(write).await?;
            computed.with_headers(json.into_response())
        }
        Asked::Rank { ranking } => {
            let (scores, computed) = app.rank(ranking, false).await?;
            computed.with_headers(head.written([scores]).into_response())
        }
    };
    Ok(Head::with_length(answer, json_bytes))
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = V2Server)]
    pub(super) struct Server {
        name: String,
        version: String,
        extensions: Vec<String>,
    }

    /// Nothing is read of it.
    #[derive(ToSchema)]
    #[schema(as = V2IndexRequest)]
    pub(super) struct IndexRequest {
        #[schema(nullable = false)]
        ready: Option<bool>,
    }

    #[derive(ToSchema)]
    #[schema(as = V2Indexed)]
    pub(super) struct Indexed {
        name: String,
        version: String,
        state: String,
        reason: String,
    }

    #[derive(ToSchema)]
    #[schema(as = V2TensorMetadata)]
    pub(super) struct TensorMetadata {
        name: String,
        datatype: String,
        shape: Vec<i64>,
    }

    #[derive(ToSchema)]
    #[schema(as = V2Model)]
    pub(super) struct Model {
        name: String,
        versions: Vec<String>,
        platform: String,
        inputs: Vec<TensorMetadata>,
        outputs: Vec<TensorMetadata>,
    }

    #[derive(ToSchema)]
    #[schema(as = V2TensorConfig)]
    pub(super) struct TensorConfig {
        name: String,
        data_type: String,
        dims: Vec<i64>,
        #[schema(nullable = false)]
        optional: Option<bool>,
    }

    #[derive(ToSchema)]
    #[schema(as = V2Config)]
    pub(super) struct Config {
        name: String,
        platform: String,
        backend: String,
        max_batch_size: u32,
        input: Vec<TensorConfig>,
        output: Vec<TensorConfig>,
    }

    #[derive(ToSchema)]
    #[schema(as = V2OutputParameters)]
    pub(super) struct OutputParameters {
        binary_data_size: usize,
    }

    #[derive(ToSchema)]
    #[schema(as = V2Output)]
    pub(super) struct Output {
        name: String,
        datatype: String,
        shape: Vec<usize>,
        #[schema(nullable = false)]
        data: Option<Vec<f32>>,
        #[schema(nullable = false)]
        parameters: Option<OutputParameters>,
    }

    #[derive(ToSchema)]
    #[schema(as = V2Inferred)]
    pub(super) struct Inferred {
        model_name: String,
        model_version: String,
        #[schema(nullable = false)]
        id: Option<String>,
        outputs: Vec<Output>,
    }
}
