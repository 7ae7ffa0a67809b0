//! What clients of llama.cpp's server ask beside OpenAI's API: texts of tokens, and what is served.
//! Computes nothing.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::engine::{SequenceView, Stage};
use serde_json::{Value, json};

use crate::server::{
    app::App,
    body::Body,
    errors::{Kind, OpenAiError, Problem},
    models::Does,
    parameters::QueryFields,
    requests::llama_cpp::{DetokenizeRequest, SlotsQuery},
    writing::Json,
};

/// Turns the tokens of a text into it.
#[utoipa::path(
    post, path = "",
    request_body = DetokenizeRequest,
    responses((status = 200, description = "The text", body = doc::Detokenized))
)]
pub(crate) async fn detokenize(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: DetokenizeRequest = body.json()?;
        let model = app.models().find(request.model.as_deref(), Does::Generate)?;
        app.limits().check_tokens("tokens", request.tokens.len())?;
        Ok(app.engine().decode(model, &request.tokens, false)?)
    };
    let text = body.read(&app, read).await?;
    let mut json = Json::default();
    // llama.cpp calls it content, vLLM prompt.
    json.raw(r#"{"content":"#).text(&text).raw(r#","prompt":"#).text(&text).raw("}");
    Ok(json.into_response())
}

/// Describes the first model that generates.
#[utoipa::path(get, path = "", responses((status = 200, description = "The model and its template", body = doc::Props)))]
pub(crate) async fn props(State(app): State<App>) -> Result<Response, Problem> {
    let number = app.generator(None)?;
    let model = app.models().get(number);
    let template = app.engine().chat_templates(number).and_then(|templates| templates.default.as_deref());
    let props = json!({
        "default_generation_settings": {"n_ctx": model.max_tokens},
        "total_slots": app.engine_limits().requests_max,
        "model_path": model.name,
        "model_alias": model.name,
        "chat_template": template.unwrap_or_default(),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("magray ", env!("CARGO_PKG_VERSION")),
    });
    Ok(axum::Json(props).into_response())
}

/// Shows what is generated and what waits to be, without its texts: a slot a sequence, the oldest first, and one that is free
/// while another sequence would be taken.
#[utoipa::path(
    get, path = "",
    params(SlotsQuery),
    responses(
        (status = 200, description = "The sequences", body = Vec<doc::Slot>),
        (status = 503, description = "No sequence would be taken, and `fail_on_no_slot` was sent", body = OpenAiError),
    )
)]
pub(crate) async fn slots(
    State(app): State<App>,
    QueryFields(query): QueryFields<SlotsQuery>,
) -> Result<Response, Problem> {
    let sequences = app.engine().sequences();
    let is_free = has_room(&app, &sequences);
    if !is_free && query.fail_on_no_slot.is_some() {
        return Err(Problem::new(Kind::Unavailable, "no slot is free: the queue takes no more tokens now"));
    }
    let mut slots: Vec<Value> = sequences.iter().enumerate().map(|(id, sequence)| slot(&app, id, sequence)).collect();
    if is_free {
        let model = app.models().get(app.generator(None)?);
        let (id, n_ctx) = (slots.len(), model.max_tokens);
        slots.push(json!({"id": id, "n_ctx": n_ctx, "model": model.name, "is_processing": false, "state": "free"}));
    }
    Ok(axum::Json(slots).into_response())
}

/// Whether the queue takes anything more to generate.
fn has_room(app: &App, sequences: &[SequenceView]) -> bool {
    let has_room = || {
        let (limits, status) = (app.engine_limits(), app.engine().status());
        let generated =
            sequences.iter().map(|one| one.prompt_tokens as u64 + u64::from(one.new_tokens_max)).sum::<u64>();
        status.requests < limits.requests_max
            && status.tokens < limits.tokens_max
            && generated < limits.tokens_to_generate()
    };
    app.engine().free_tokens() > 0 || has_room()
}

fn slot(app: &App, id: usize, sequence: &SequenceView) -> Value {
    let (model, sampling) = (app.models().get(sequence.model), &sequence.sampling);
    let left = (sequence.new_tokens_max as usize).saturating_sub(sequence.new_tokens);
    let ms = |time: std::time::Duration| time.as_micros() as f64 / 1e3;
    json!({
        "id": id,
        "id_task": sequence.id.0,
        "n_ctx": model.max_tokens,
        "model": model.name,
        "device": sequence.device.map(|device| device.to_string()),
        "is_processing": true,
        "state": sequence.stage.code(),
        "priority": sequence.priority.code(),
        "speculative": sampling.speculate.unwrap_or(0) > 0,
        "n_prompt_tokens": sequence.prompt_tokens,
        "n_prompt_tokens_cache": sequence.cached_tokens,
        "age_ms": ms(sequence.age),
        "first_token_ms": sequence.first_token.map(ms),
        "tokens_per_second": sequence.tokens_per_s,
        "params": {
            "n_predict": sequence.new_tokens_max,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "ignore_eos": sampling.ignores_end,
        },
        "next_token": [{
            "has_next_token": left > 0 && sequence.stage != Stage::Paused,
            "n_remain": left,
            "n_decoded": sequence.new_tokens,
        }],
    })
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    pub(super) struct Detokenized {
        content: String,
        /// The same.
        prompt: String,
    }

    #[derive(ToSchema)]
    pub(super) struct Props {
        default_generation_settings: GenerationSettings,
        total_slots: usize,
        model_path: String,
        model_alias: String,
        chat_template: String,
        build_info: String,
    }

    #[derive(ToSchema)]
    struct GenerationSettings {
        n_ctx: usize,
    }

    /// A sequence. One that is free has only its id, the context, the model and the first two states.
    #[derive(ToSchema)]
    pub(super) struct Slot {
        /// Its place in this list.
        id: usize,
        /// The number of its sequence, which no other ever has.
        #[schema(nullable = false)]
        id_task: Option<u64>,
        n_ctx: usize,
        model: String,
        is_processing: bool,
        /// `waiting`, `prompt`, `generating`, `paused` (its reader is slow), or `free`.
        state: String,
        /// What has its keys and values; null while it waits.
        device: Option<String>,
        #[schema(nullable = false)]
        priority: Option<String>,
        /// Whether tokens are proposed for its passes.
        #[schema(nullable = false)]
        speculative: Option<bool>,
        #[schema(nullable = false)]
        n_prompt_tokens: Option<usize>,
        /// Those that were not computed: another sequence began with them.
        #[schema(nullable = false)]
        n_prompt_tokens_cache: Option<u32>,
        /// Since it was asked for.
        #[schema(nullable = false)]
        age_ms: Option<f64>,
        /// Null before its first token.
        first_token_ms: Option<f64>,
        /// Since its first token; null before there are several.
        tokens_per_second: Option<f64>,
        /// How its tokens are chosen, by llama.cpp's names.
        #[schema(value_type = Option<Object>, nullable = false)]
        params: Option<serde_json::Value>,
        #[schema(nullable = false)]
        next_token: Option<Vec<NextToken>>,
    }

    #[derive(ToSchema)]
    struct NextToken {
        has_next_token: bool,
        /// New tokens that it may still get.
        n_remain: usize,
        /// New tokens so far.
        n_decoded: usize,
    }
}
