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

/// Turns texts into tokens. Those of `inputs` are cut to what the model reads; `start` and `stop` count bytes of the text, with
/// the prompt before it; special tokens have none. A `content` or a `prompt` must fit as a whole, and has ids alone.
#[utoipa::path(
    post, path = "",
    request_body = TokenizeRequest<'_>,
    responses((status = 200, description = "The tokens of each text, or of the one", body = doc::Tokenized))
)]
pub(crate) async fn tokenize(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: TokenizeRequest<'_> = body.json()?;
        let Some(inputs) = &request.inputs else { return prompt_ids(app, &request) };
        let model = app.models().find(request.model.as_deref(), Does::Embed)?;
        let texts = &inputs.texts;
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

/// The ids of one text to go on from.
fn prompt_ids(app: &App, request: &TokenizeRequest<'_>) -> Result<Json, Problem> {
    let (text, with_special) = match (&request.content, &request.prompt) {
        (Some(text), _) => (text, request.add_special.unwrap_or(false)),
        (None, Some(text)) => (text, request.add_special_tokens.unwrap_or(true)),
        (None, None) => return Err(Problem::invalid("inputs", "there is no text: inputs, content or prompt")),
    };
    app.limits().check_texts("content", std::iter::once(text.as_ref()))?;
    let (engine, model) = (app.engine(), app.models().find(request.model.as_deref(), Does::Generate)?);
    let ids = if with_special { engine.read_prompt(model, text)? } else { engine.read_rendered(model, text)? };
    let mut json = Json::default();
    json.raw(r#"{"tokens":"#).list(&ids, |json, id| {
        json.whole(*id as usize);
    });
    let max_tokens = app.models().get(model).max_tokens;
    json.raw(r#","count":"#).whole(ids.len()).raw(r#","max_model_len":"#).whole(max_tokens).raw("}");
    Ok(json)
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
    #[serde(untagged)]
    pub(super) enum Tokenized {
        /// Of `inputs`.
        Texts(Vec<Vec<Token>>),
        /// Of `content` or `prompt`.
        Prompt(Prompt),
    }

    #[derive(ToSchema)]
    #[schema(as = TokenizedPrompt)]
    pub(super) struct Prompt {
        tokens: Vec<u32>,
        count: usize,
        /// The context of the model.
        max_model_len: usize,
    }

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
