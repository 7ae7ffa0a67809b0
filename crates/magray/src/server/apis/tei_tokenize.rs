//! The part of text-embeddings-inference's API that computes nothing: tokens, texts of tokens, what is served.
//! Reads texts alone: token ids become no tokens again.

use std::borrow::Cow;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::spec::{Pooling, Task};
use serde::Serialize;

use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    inputs::Input,
    models::Does,
    requests::tei::{DecodeRequest, TokenizeRequest},
    writing::Json,
};

/// Turns texts into tokens, cut to what the model reads. `start` and `stop` count bytes of the text, with the prompt before
/// it; special tokens have none.
#[utoipa::path(
    post, path = "",
    request_body = TokenizeRequest<'_>,
    responses((status = 200, description = "The tokens of each text", body = Vec<Vec<doc::Token>>))
)]
pub(crate) async fn tokenize(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: TokenizeRequest<'_> = body.json()?;
        let model = app.models().find(request.model.as_deref(), Does::Embed)?;
        let texts = &request.inputs.texts;
        app.limits().check_texts("inputs", texts.iter().map(|text| text.as_ref()))?;
        let with_special = request.add_special_tokens.unwrap_or(true);
        let prompt = request.prompt_name.map(|name| prompt(app, model, &name)).transpose()?.unwrap_or_default();
        let spell = |text: &Cow<'_, str>| Ok(app.engine().spell(model, &format!("{prompt}{text}"), with_special)?);
        let spelled = texts.iter().map(spell).collect::<Result<Vec<_>, Problem>>()?;
        let mut json = Json::default();
        json.list(&spelled, |json, tokens| {
            json.list(tokens, |json, token| {
                json.raw(r#"{"id":"#).whole(token.id as usize).raw(r#","text":"#).text(&token.text);
                let special = if token.is_special { "true" } else { "false" };
                json.raw(r#","special":"#).raw(special);
                match &token.place {
                    Some(place) => {
                        json.raw(r#","start":"#).whole(place.start).raw(r#","stop":"#).whole(place.end).raw("}")
                    }
                    None => json.raw(r#","start":null,"stop":null}"#),
                };
            });
        });
        Ok(json)
    };
    Ok(body.read(&app, read).await?.into_response())
}

fn prompt<'a>(app: &'a App, model: usize, name: &str) -> Result<&'a str, Problem> {
    let prompts = app.engine().spec(model).map(|spec| &spec.prompts);
    let text = prompts.and_then(|prompts| prompts.get(name)).map(String::as_str);
    text.ok_or_else(|| Problem::invalid("prompt_name", "the model has no prompt of this name"))
}

/// Turns token ids into texts.
#[utoipa::path(
    post, path = "",
    request_body = DecodeRequest<'_>,
    responses((status = 200, description = "One text for each array of ids", body = Vec<String>))
)]
pub(crate) async fn decode(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: DecodeRequest<'_> = body.json()?;
        let model = app.models().find(request.model.as_deref(), Does::Embed)?;
        let limits = app.limits();
        limits.check_count("ids", request.ids.len())?;
        let Input::Ids { texts, .. } = &request.ids else {
            return Err(Problem::invalid("ids", "ids are an array of token ids, or an array of such arrays"));
        };
        limits.check_tokens("ids", texts.iter().map(Vec::len).sum())?;
        let skip_special = request.skip_special_tokens.unwrap_or(true);
        let decode = |ids: &Vec<u32>| Ok(app.engine().decode(model, ids, skip_special)?);
        let decoded = texts.iter().map(decode).collect::<Result<Vec<_>, Problem>>()?;
        let mut json = Json::default();
        json.list(&decoded, |json, text| {
            json.text(text);
        });
        Ok(json)
    };
    Ok(body.read(&app, read).await?.into_response())
}

/// What is served; of several models, the first.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct Info {
    model_id: String,
    /// The sha256 of its weights; null until it is known, soon after the first request for it.
    model_sha: Option<String>,
    /// How its weights are stored, such as `float32`.
    model_dtype: String,
    model_type: ModelType,
    max_concurrent_requests: usize,
    max_input_length: usize,
    max_batch_tokens: usize,
    max_batch_requests: Option<usize>,
    max_client_batch_size: usize,
    auto_truncate: bool,
    version: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum ModelType {
    Embedding { pooling: String },
    Reranker { id2label: Vec<String> },
    Classifier { id2label: Vec<String> },
}

/// Describes what is served.
#[utoipa::path(get, path = "", responses((status = 200, description = "The first model and the limits", body = Info)))]
pub(crate) async fn info(State(app): State<App>) -> Result<Response, Problem> {
    let first = app.models().first().ok_or_else(|| app.models().unknown("there is no model here"))?;
    let model = app.models().get(first);
    let limits = app.limits();
    let model_type = match app.engine().spec(first).map(|spec| &spec.task) {
        Some(Task::Classify(classify)) if classify.labels.len() == 1 => {
            ModelType::Reranker { id2label: classify.labels.clone() }
        }
        Some(Task::Classify(classify)) => ModelType::Classifier { id2label: classify.labels.clone() },
        Some(Task::Embed(embed)) => ModelType::Embedding { pooling: pooling_name(&embed.pooling).to_owned() },
        Some(Task::Generate(_)) | None => ModelType::Embedding { pooling: String::new() },
    };
    Ok(axum::Json(Info {
        model_id: model.name.clone(),
        model_sha: model.files.sha256().map(str::to_owned),
        model_dtype: dtype_name(model.files.dtype()).to_owned(),
        model_type,
        max_concurrent_requests: app.engine_limits().requests_max,
        max_input_length: model.max_tokens,
        max_batch_tokens: limits.tokens_max,
        max_batch_requests: None,
        max_client_batch_size: limits.texts_max,
        auto_truncate: limits.is_cutting,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
    .into_response())
}

/// As text-embeddings-inference names types.
fn dtype_name(dtype: &str) -> &str {
    match dtype {
        "F32" => "float32",
        "F16" => "float16",
        "BF16" => "bfloat16",
        other => other,
    }
}

fn pooling_name(pooling: &[Pooling]) -> &'static str {
    match pooling {
        [Pooling::Mean] => "mean",
        [Pooling::Cls] => "cls",
        _ => "other",
    }
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    pub(super) struct Token {
        id: u32,
        text: String,
        /// Put there by the tokenizer.
        special: bool,
        start: Option<usize>,
        stop: Option<usize>,
    }
}
