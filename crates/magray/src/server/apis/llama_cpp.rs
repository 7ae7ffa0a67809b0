//! What clients of llama.cpp's server ask beside OpenAI's API: texts of tokens, and what is served.
//! Computes nothing.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::server::{
    app::App, body::Body, errors::Problem, models::Does, requests::llama_cpp::DetokenizeRequest, writing::Json,
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
}
