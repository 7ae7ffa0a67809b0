//! OpenAI's API: embeddings and models, and the reranking that others have put beside them.
//! Takes what their clients send, ignores what has no meaning here, and refuses what would change the answer.

use std::borrow::Cow;

use axum::{
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use magray_engine::engine::Answer;

use super::reranking;
use crate::server::{
    app::App,
    body::Body,
    errors::{Kind, OpenAiError, Problem},
    inputs::Input,
    lines::TextsBody,
    models::Model,
    requests::openai::{EmbeddingsRequest, EncodingFormat, RerankRequest},
    service::Reading,
    vectors::cut,
    writing::Json,
};

/// Turns texts into vectors. Lines of JSON, each a text or an object with an `input`, are answered by a line each; the other
/// fields are then in the query.
#[utoipa::path(
    post, path = "",
    request_body = EmbeddingsRequest<'_>,
    responses((status = 200, description = "The vectors", body = doc::Embeddings))
)]
pub(crate) async fn embeddings(State(app): State<App>, body: TextsBody) -> Result<Response, Problem> {
    let body = match body {
        TextsBody::Whole(body) => body,
        TextsBody::Lines(lines) => return lines.embed(app, None),
    };
    let read = |app: &App, body: &Body| {
        let request: EmbeddingsRequest<'_> = body.json()?;
        let model = app.models().embedder(request.model.as_deref())?;
        app.models().get(model).check_dimensions(request.dimensions)?;
        let how = Reading { model, param: "input", prompt: request.prompt_name.as_deref(), truncate: None };
        let input = match (request.input, app.openai_tokens()) {
            (Input::Ids { texts, is_single }, Some(tokens)) => {
                let decode = |ids: &Vec<u32>| Ok(Cow::Owned(tokens.decode(ids)?));
                Input::Texts { texts: texts.iter().map(decode).collect::<Result<_, Problem>>()?, is_single }
            }
            (input, _) => input,
        };
        let read = app.read_input(input, how)?;
        Ok((read, model, request.encoding_format.unwrap_or_default(), request.dimensions))
    };
    let (read, model, format, dimensions) = body.read(&app, read).await?;
    let computed = app.compute(read).await?;
    let write = move |answer: &Answer| {
        let mut json = Json::for_numbers(answer.values.len());
        json.raw(r#"{"object":"list","data":"#).list(answer.rows().enumerate(), |json, (at, row)| {
            json.raw(r#"{"object":"embedding","index":"#).whole(at).raw(r#","embedding":"#);
            let row = cut(row, dimensions);
            match format {
                EncodingFormat::Float => json.numbers(&row),
                EncodingFormat::Base64 => json.base64(&row),
            };
            json.raw("}");
        });
        json.raw(r#","model":"#).text(&app.models().get(model).name);
        json.raw(r#","usage":{"prompt_tokens":"#).whole(answer.tokens);
        json.raw(r#","total_tokens":"#).whole(answer.tokens).raw("}}");
        json
    };
    computed.written(write).await
}

/// Lists the models.
#[utoipa::path(get, path = "", responses((status = 200, description = "The models", body = doc::Models)))]
pub(crate) async fn models(State(app): State<App>) -> Response {
    let mut json = Json::default();
    let listed = app.models().iter().map(|(_, model)| (model.name.clone(), model));
    let aliases = app.models().aliases().into_iter().map(|(alias, number)| (alias, app.models().get(number)));
    json.raw(r#"{"object":"list","data":"#).list(listed.chain(aliases), |json, (id, model)| {
        write_model(json, &id, model);
    });
    json.raw("}");
    json.into_response()
}

/// Shows one model.
#[utoipa::path(
    get, path = "",
    params(("model" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The model", body = doc::Model),
        (status = 400, description = "The name is no text", body = OpenAiError),
        (status = 404, description = "No such model", body = OpenAiError),
    )
)]
pub(crate) async fn model(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(no_name)?;
    show_model(&app, &name)
}

/// Shows one model, by a name with an organisation, as the hub has them. Clients do not escape the slash in it.
#[utoipa::path(
    get, path = "",
    params(("organisation" = String, Path, description = "Whose it is"), ("model" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The model", body = doc::Model),
        (status = 400, description = "The name is no text", body = OpenAiError),
        (status = 404, description = "No such model", body = OpenAiError),
    )
)]
pub(crate) async fn hub_model(
    State(app): State<App>,
    name: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let Path((organisation, name)) = name.map_err(no_name)?;
    show_model(&app, &format!("{organisation}/{name}"))
}

fn no_name(reason: PathRejection) -> Problem {
    Problem::new(Kind::Malformed, format!("the path names no model: {reason}"))
}

fn show_model(app: &App, name: &str) -> Result<Response, Problem> {
    let model = app.models().get(app.models().named(name)?);
    let mut json = Json::default();
    write_model(&mut json, &model.name, model);
    Ok(json.into_response())
}

/// A model by its own name or by an alias; `root` is its own name.
fn write_model(json: &mut Json, id: &str, model: &Model) {
    json.raw(r#"{"id":"#).text(id).raw(r#","object":"model","created":"#);
    json.whole(model.files.created_unix_s() as usize).raw(r#","owned_by":"magray","root":"#).text(&model.name);
    json.raw(r#","does":"#).text(model.does.code()).raw(r#","max_tokens":"#).whole(model.max_tokens);
    json.raw(r#","outputs":"#).whole(model.outputs).raw(r#","dtype":"#).text(model.files.dtype());
    if let Some(bytes) = model.files.bytes() {
        json.raw(r#","bytes":"#).whole(bytes as usize);
    }
    if let Some(sha256) = model.files.sha256() {
        json.raw(r#","sha256":"#).text(sha256);
    }
    json.raw("}");
}

/// Puts documents in the order of how well they fit a query.
#[utoipa::path(
    post, path = "",
    request_body = RerankRequest<'_>,
    responses(
        (status = 200, description = "The documents' indices and scores, the best first", body = doc::Reranked),
    )
)]
pub(crate) async fn rerank(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let reranked = reranking::rerank(&app, body).await?;
    let mut json = reranked.json();
    json.raw(r#"{"model":"#).text(&app.models().get(reranked.model).name).raw(r#","results":"#);
    reranked.write(&mut json);
    json.raw(r#","usage":{"total_tokens":"#).whole(reranked.computed.answer.tokens).raw("}}");
    Ok(reranked.computed.with_headers(json.into_response()))
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    pub(super) struct Embeddings {
        /// `list`.
        object: String,
        data: Vec<Embedding>,
        model: String,
        usage: Usage,
    }

    #[derive(ToSchema)]
    struct Embedding {
        /// `embedding`.
        object: String,
        index: usize,
        embedding: Vector,
    }

    /// Numbers, or 32-bit floats in base64.
    #[derive(ToSchema)]
    #[serde(untagged)]
    enum Vector {
        Float(Vec<f32>),
        Base64(String),
    }

    #[derive(ToSchema)]
    struct Usage {
        prompt_tokens: usize,
        total_tokens: usize,
    }

    #[derive(ToSchema)]
    pub(super) struct Models {
        /// `list`.
        object: String,
        data: Vec<Model>,
    }

    #[derive(ToSchema)]
    pub(super) struct Model {
        id: String,
        /// `model`.
        object: String,
        /// When its weights came, in seconds since 1970.
        created: u64,
        owned_by: String,
        /// Its own name, where `id` is an alias.
        root: String,
        /// `embed`, `rank` or `classify`.
        does: String,
        max_tokens: usize,
        /// Dimensions of a vector, or labels.
        outputs: usize,
        /// How its weights are stored, such as `F32`.
        dtype: String,
        /// Of its weights' files.
        #[schema(nullable = false)]
        bytes: Option<u64>,
        /// The hash of its weights; it is there soon after the first request for it.
        #[schema(nullable = false)]
        sha256: Option<String>,
    }

    #[derive(ToSchema)]
    pub(super) struct Reranked {
        model: String,
        results: Vec<super::reranking::Ranked>,
        usage: RerankUsage,
    }

    #[derive(ToSchema)]
    struct RerankUsage {
        total_tokens: usize,
    }
}
