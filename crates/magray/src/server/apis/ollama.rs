//! Ollama's API, as far as it is about embeddings and about which models there are.
//! Ignores the options of text generation; chats, and how models come and go, are told elsewhere.

use std::time::{Instant, SystemTime};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header};
use magray_engine::{
    Precision,
    engine::{Answer, ModelStatus, Status},
    health::{utc, utc_of},
    spec::{Architecture, GenerateSpec, ModelSpec, decoder::DecoderSource},
};
use serde::Serialize;

use super::qdrant;
use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    inputs::{Input, Texts},
    models::{Does, Model},
    requests::ollama::{EmbedRequest, EmbeddingsRequest, ShowRequest},
    service::Reading,
    vectors::cut,
    writing::Json,
};

/// Turns texts into vectors.
#[utoipa::path(
    post, path = "",
    operation_id = "ollama_embed",
    request_body = EmbedRequest<'_>,
    responses((status = 200, description = "The vectors", body = doc::Embedded))
)]
pub(crate) async fn embed(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let started = Instant::now();
    let read = |app: &App, body: &Body| {
        let request: EmbedRequest<'_> = body.json()?;
        let model = app.models().embedder(request.model.as_deref())?;
        app.models().get(model).check_dimensions(request.dimensions)?;
        let how = Reading { model, param: "input", prompt: None, truncate: Some(request.truncate.unwrap_or(true)) };
        let read = match request.input.filter(|input| !input.texts.is_empty()) {
            Some(Texts { texts, is_single }) => Some(app.read_input(Input::Texts { texts, is_single }, how)?),
            None => None,
        };
        Ok((read, model, request.dimensions))
    };
    let (read, model, dimensions) = body.read(&app, read).await?;
    let name = &app.models().get(model).name;
    let Some(read) = read else {
        let mut json = Json::default();
        json.raw(r#"{"model":"#).text(name).raw(r#","embeddings":[]}"#);
        return Ok(json.into_response());
    };
    let (name, computed) = (name.clone(), app.compute(read).await?);
    let write = move |answer: &Answer| {
        let mut json = Json::for_numbers(answer.values.len());
        json.raw(r#"{"model":"#).text(&name).raw(r#","embeddings":"#);
        json.list(answer.rows(), |json, row| {
            json.numbers(&cut(row, dimensions));
        });
        // The wait includes the loading of the model.
        json.raw(r#","total_duration":"#).whole(started.elapsed().as_nanos() as usize);
        json.raw(r#","load_duration":"#).whole(answer.queued.as_nanos() as usize);
        json.raw(r#","prompt_eval_count":"#).whole(answer.tokens).raw("}");
        json
    };
    computed.written(write).await
}

/// Turns one text into a vector: the older form of the request.
#[utoipa::path(
    post, path = "",
    operation_id = "ollama_embeddings",
    request_body = EmbeddingsRequest<'_>,
    responses((status = 200, description = "The vector", body = doc::Embedding))
)]
pub(crate) async fn embeddings(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: EmbeddingsRequest<'_> = body.json()?;
        let model = app.models().embedder(request.model.as_deref())?;
        let how = Reading { model, param: "prompt", prompt: None, truncate: Some(true) };
        let Some(text) = request.prompt.filter(|prompt| !prompt.is_empty()) else { return Ok(None) };
        app.read_input(Input::Texts { texts: vec![text], is_single: true }, how).map(Some)
    };
    let mut json = Json::default();
    let Some(read) = body.read(&app, read).await? else {
        json.raw(r#"{"embedding":[]}"#);
        return Ok(json.into_response());
    };
    let computed = app.compute(read).await?;
    json.raw(r#"{"embedding":"#).numbers(computed.answer.rows().next().unwrap_or_default()).raw("}");
    Ok(computed.with_headers(json.into_response()))
}

/// A model, as Ollama's clients see it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OllamaModel)]
struct Listed {
    name: String,
    model: String,
    /// When its weights came.
    modified_at: String,
    /// Bytes of its weights' files.
    size: u64,
    /// The sha256 of its weights; empty until it is known, soon after the first request for it.
    digest: String,
    details: Details,
    /// When it leaves its GPU if it is not used; null: not by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<String>,
    /// Bytes of its weights on GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    size_vram: Option<u64>,
}

/// What a model is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OllamaDetails)]
struct Details {
    parent_model: &'static str,
    /// `safetensors`, `gguf` or `onnx`.
    format: &'static str,
    /// Whose layers it has.
    family: &'static str,
    families: Vec<&'static str>,
    /// Parameters, such as `22.7M`.
    parameter_size: String,
    /// How its numbers are stored, such as `F32`.
    quantization_level: String,
}

/// All models, or those that are in memory.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OllamaModels)]
struct ModelList {
    models: Vec<Listed>,
}

impl Listed {
    fn of(status: &ModelStatus, model: &Model, spec: &ModelSpec) -> Self {
        Self {
            name: status.name.clone(),
            model: status.name.clone(),
            modified_at: utc_of(model.files.created_unix_s()),
            size: model.files.bytes().unwrap_or(status.view.plan.bytes),
            digest: model.files.sha256().unwrap_or_default().to_owned(),
            details: Details::of(model, spec),
            expires_at: None,
            size_vram: None,
        }
    }
}

impl Details {
    fn of(model: &Model, spec: &ModelSpec) -> Self {
        let family = family(spec);
        let parameters = parameters(spec) as f64;
        Self {
            parent_model: "",
            format: format(spec),
            family,
            families: vec![family],
            parameter_size: format!("{:.1}M", parameters / 1e6),
            quantization_level: model.files.dtype().to_owned(),
        }
    }
}

fn format(spec: &ModelSpec) -> &'static str {
    let is_gguf = |generate: &GenerateSpec| match &generate.source {
        DecoderSource::Path(path) => path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")),
        DecoderSource::Synthetic(_) => false,
    };
    match spec.generates() {
        Some(generate) if is_gguf(generate) => "gguf",
        _ if spec.onnx.is_some() => "onnx",
        _ => "safetensors",
    }
}

fn family(spec: &ModelSpec) -> &'static str {
    match spec.architecture {
        Architecture::Bert => "bert",
        Architecture::Roberta => "roberta",
        Architecture::DistilBert => "distilbert",
        Architecture::MpNet => "mpnet",
        Architecture::Onnx => "onnx",
        Architecture::Decoder => "llama",
    }
}

/// Lists the models.
#[utoipa::path(get, path = "", responses((status = 200, description = "The models", body = ModelList)))]
pub(crate) async fn tags(State(app): State<App>) -> Response {
    let status = app.engine().status();
    let models = app.models().iter().filter_map(|(at, model)| listed(&app, &status, at, model)).collect();
    axum::Json(ModelList { models }).into_response()
}

fn listed(app: &App, status: &Status, at: usize, model: &Model) -> Option<Listed> {
    Some(Listed::of(status.models.get(at)?, model, app.engine().spec(at)?))
}

/// Lists the models that are in memory.
#[utoipa::path(
    get, path = "",
    responses((status = 200, description = "The models that are in memory", body = ModelList))
)]
pub(crate) async fn ps(State(app): State<App>) -> Response {
    let status = app.engine().status();
    let report = app.report();
    let in_memory = |(at, model): (usize, &Model)| {
        let location = report.models.iter().find(|reported| reported.number == at)?.location.as_str();
        if location == "unloaded" {
            return None;
        }
        let (is_on_gpu, view) = (location == "gpu", &status.models.get(at)?.view);
        let left = view.plan.idle_timeout.map(|timeout| timeout.saturating_sub(view.idle));
        let leaves = left.filter(|_| is_on_gpu).and_then(|left| SystemTime::now().checked_add(left));
        Some(Listed {
            expires_at: leaves.map(utc),
            size_vram: Some(if is_on_gpu { view.plan.bytes } else { 0 }),
            ..listed(&app, &status, at, model)?
        })
    };
    let models = app.models().iter().filter_map(in_memory).collect();
    axum::Json(ModelList { models }).into_response()
}

/// Shows what a model is.
#[utoipa::path(
    post, path = "",
    request_body = ShowRequest,
    responses((status = 200, description = "The model", body = doc::Shown))
)]
pub(crate) async fn show(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let request: ShowRequest = body.json()?;
    let index = app.models().named(&request.model)?;
    let model = app.models().get(index);
    let Some(spec) = app.engine().spec(index) else { unreachable!("every model has a specification") };
    let family = family(spec);
    let template = engine_template(&app, index);
    let shown = serde_json::json!({
        "modelfile": "",
        "parameters": "",
        "template": template,
        "modified_at": utc_of(model.files.created_unix_s()),
        "digest": model.files.sha256().unwrap_or_default(),
        "details": Details::of(model, spec),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.name,
            "general.parameter_count": parameters(spec),
            (format!("{family}.context_length")): spec.max_tokens,
            (format!("{family}.embedding_length")): model.outputs,
            (format!("{family}.block_count")): spec.shape.layers,
            (format!("{family}.attention.head_count")): spec.shape.heads,
        },
        "capabilities": capabilities(&app, index)?,
    });
    Ok(axum::Json(shown).into_response())
}

/// What a model can do, in Ollama's words.
fn capabilities(app: &App, index: usize) -> Result<Vec<&'static str>, Problem> {
    let model = app.models().get(index);
    Ok(match model.does {
        Does::Embed => vec!["embedding"],
        Does::Rank | Does::Classify => vec![model.does.code()],
        Does::Generate => {
            let template = model.chat_template(app.engine(), index)?;
            let (reads_tools, thinks) = template.map_or((false, false), |known| (known.reads_tools(), known.thinks()));
            let known = [(true, "completion"), (reads_tools, "tools"), (thinks, "thinking")];
            known.into_iter().filter_map(|(is_known, name)| is_known.then_some(name)).collect()
        }
    })
}

fn engine_template(app: &App, index: usize) -> &str {
    app.engine().chat_templates(index).and_then(|templates| templates.default.as_deref()).unwrap_or_default()
}

/// How many numbers a model's weights are.
fn parameters(spec: &ModelSpec) -> u64 {
    match spec.generates() {
        Some(generate) => generate.decoder.parameters(),
        None => spec.shape.weight_bytes(Precision::F32) / 4,
    }
}

/// The version of Ollama whose API this is: programs ask for at least one.
const OLLAMA_VERSION: &str = "0.12.0";

/// The version of Ollama whose API this is, and that of magray.
#[utoipa::path(get, path = "", responses((status = 200, description = "The versions", body = doc::Version)))]
pub(crate) async fn version() -> Response {
    axum::Json(serde_json::json!({ "version": OLLAMA_VERSION, "magray": env!("CARGO_PKG_VERSION") })).into_response()
}

/// Says that the server runs: what Ollama's programs ask first. Qdrant's clients, told by their `user-agent`, are given the
/// version of Qdrant's API that they compare with their own.
#[utoipa::path(
    get, path = "",
    responses((status = 200, description = "It runs", body = String, content_type = "text/plain"))
)]
pub(crate) async fn running(headers: HeaderMap) -> Response {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    if agent.starts_with("python-client/") || agent.contains("qdrant") {
        return qdrant::version();
    }
    "magray is running".into_response()
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = OllamaEmbedded)]
    pub(super) struct Embedded {
        model: String,
        embeddings: Vec<Vec<f32>>,
        /// Nanoseconds.
        #[schema(nullable = false)]
        total_duration: Option<u64>,
        /// Nanoseconds that it waited.
        #[schema(nullable = false)]
        load_duration: Option<u64>,
        /// Tokens.
        #[schema(nullable = false)]
        prompt_eval_count: Option<usize>,
    }

    #[derive(ToSchema)]
    #[schema(as = OllamaEmbedding)]
    pub(super) struct Embedding {
        embedding: Vec<f32>,
    }

    #[derive(ToSchema)]
    #[schema(as = OllamaShown)]
    pub(super) struct Shown {
        modelfile: String,
        parameters: String,
        template: String,
        modified_at: String,
        /// The sha256 of its weights; empty until it is known.
        digest: String,
        details: super::Details,
        model_info: serde_json::Value,
        /// `embedding`, `rank`, `classify`, `completion`, `tools` or `thinking`.
        capabilities: Vec<String>,
    }

    #[derive(ToSchema)]
    #[schema(as = OllamaVersion)]
    pub(super) struct Version {
        /// Of Ollama's API.
        version: String,
        magray: String,
    }
}
