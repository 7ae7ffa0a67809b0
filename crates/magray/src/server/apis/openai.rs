//! OpenAI's API: embeddings and models, and the reranking that others have put beside them.
//! Takes what their clients send, ignores what has no meaning here, and refuses what would change the answer.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::server::{
    body::Body,
    errors::{OpenAiError, OpenAiProblems, Problem},
    inputs::{Documents, Input},
    models::{Does, Model},
    ranking::Ranking,
    service::Reading,
    state::App,
    vectors::{cut, ranked},
    writing::Json,
};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(embeddings))
        .routes(routes!(models))
        .routes(routes!(model))
        .routes(routes!(rerank))
}

/// Texts to embed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = EmbeddingsRequest)]
struct EmbeddingsRequest<'a> {
    /// A text, texts, or token ids of the model.
    #[serde(borrow)]
    input: Input<'a>,
    /// A model of `/v1/models` or one of its aliases; without it, the first that embeds.
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    encoding_format: Option<EncodingFormat>,
    /// The first so many numbers of each vector, scaled to length 1 again.
    #[serde(default)]
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
    /// A prompt of the model to put before each text.
    #[serde(borrow, default)]
    prompt_name: Option<Cow<'a, str>>,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

/// Turns texts into vectors.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "openai", security(("key" = []), ()),
    request_body = EmbeddingsRequest<'_>,
    responses(
        (status = 200, description = "The vectors", body = doc::Embeddings),
        OpenAiProblems,
    )
)]
async fn embeddings(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let body = Arc::new(body);
    let own = Arc::clone(&body);
    let read = move |app: &App| {
        let request: EmbeddingsRequest<'_> = own.json()?;
        let model = app.models().find(request.model.as_deref(), Does::Embed)?;
        check_dimensions(request.dimensions, app.models().get(model))?;
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
    let (read, model, format, dimensions) = app.read(body.len(), read).await?;
    let computed = app.compute(read).await?;
    let answer = &computed.answer;
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
    Ok(computed.tell(json.into_response()))
}

/// Refuses dimensions that a model's vectors do not have.
pub(in crate::server) fn check_dimensions(dimensions: Option<usize>, model: &Model) -> Result<(), Problem> {
    match dimensions {
        Some(wanted) if wanted == 0 || wanted > model.outputs => {
            let message = format!("the vectors of '{}' have {} dimensions, not {wanted}", model.name, model.outputs);
            Err(Problem::invalid("dimensions", message))
        }
        _ => Ok(()),
    }
}

/// Lists the models.
#[utoipa::path(
    get, path = "/v1/models", tag = "openai", security(("key" = []), ()),
    responses(
        (status = 200, description = "The models", body = doc::Models),
        (status = 401, description = "No key, or a wrong one", body = OpenAiError),
    )
)]
async fn models(State(app): State<App>) -> Response {
    let mut json = Json::default();
    json.raw(r#"{"object":"list","data":"#).list(app.models().iter(), write_model).raw("}");
    json.into_response()
}

/// Shows one model.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "openai", security(("key" = []), ()),
    params(("model" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The model", body = doc::Model),
        (status = 401, description = "No key, or a wrong one", body = OpenAiError),
        (status = 404, description = "No such model", body = OpenAiError),
    )
)]
async fn model(State(app): State<App>, Path(name): Path<String>) -> Result<Response, Problem> {
    let place = app.models().named(&name)?;
    let mut json = Json::default();
    write_model(&mut json, app.models().get(place));
    Ok(json.into_response())
}

fn write_model(json: &mut Json, model: &Model) {
    json.raw(r#"{"id":"#).text(&model.name).raw(r#","object":"model","created":0,"owned_by":"magray","#);
    json.raw(r#""does":"#).text(model.does.code()).raw(r#","max_tokens":"#).whole(model.max_tokens);
    json.raw(r#","outputs":"#).whole(model.outputs).raw("}");
}

/// A query, and documents to put in order.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = RerankRequest)]
struct RerankRequest<'a> {
    /// Without it, the first model that scores pairs; where there is none, vectors are compared.
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    query: Cow<'a, str>,
    /// Texts, or objects with a `text`.
    #[serde(borrow)]
    documents: Documents<'a>,
    /// How many of the best are told; without it, all.
    #[serde(default)]
    #[schema(minimum = 1)]
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: Option<bool>,
}

/// Puts documents in the order of how well they fit a query.
#[utoipa::path(
    post, path = "/v1/rerank", tag = "openai", security(("key" = []), ()),
    request_body = RerankRequest<'_>,
    responses(
        (status = 200, description = "The documents' places and scores, the best first", body = doc::Reranked),
        OpenAiProblems,
    )
)]
async fn rerank(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let body = Arc::new(body);
    let own = Arc::clone(&body);
    let read = move |app: &App| {
        let request: RerankRequest<'_> = own.json()?;
        if request.top_n == Some(0) {
            return Err(Problem::invalid("top_n", "top_n is at least 1"));
        }
        let model = app.models().find(request.model.as_deref(), Does::Rank)?;
        let Documents(texts) = request.documents;
        let returned = request.return_documents == Some(true);
        let returned = returned.then(|| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>());
        let how = Reading { model, param: "documents", prompt: None, truncate: None };
        let ranking = app.read_ranking(Ranking { query: request.query, texts }, how)?;
        Ok((ranking, model, request.top_n.unwrap_or(usize::MAX), returned))
    };
    let (ranking, model, top_n, returned) = app.read(body.len(), read).await?;
    let (scores, computed) = app.rank(ranking, false).await?;
    let mut json = Json::for_numbers(scores.len() * 4);
    json.raw(r#"{"model":"#).text(&app.models().get(model).name).raw(r#","results":"#);
    json.list(ranked(&scores).into_iter().take(top_n), |json, place| {
        json.raw(r#"{"index":"#).whole(place).raw(r#","relevance_score":"#).number(scores[place]);
        if let Some(returned) = &returned {
            json.raw(r#","document":{"text":"#).text(&returned[place]).raw("}");
        }
        json.raw("}");
    });
    json.raw(r#","usage":{"total_tokens":"#).whole(computed.answer.tokens).raw("}}");
    Ok(computed.tell(json.into_response()))
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
        created: u64,
        owned_by: String,
        /// `embed`, `rank` or `classify`.
        does: String,
        max_tokens: usize,
        /// Dimensions of a vector, or labels.
        outputs: usize,
    }

    #[derive(ToSchema)]
    pub(super) struct Reranked {
        model: String,
        results: Vec<Ranked>,
        usage: RerankUsage,
    }

    #[derive(ToSchema)]
    struct RerankUsage {
        total_tokens: usize,
    }

    #[derive(ToSchema)]
    struct Ranked {
        index: usize,
        relevance_score: f32,
        #[schema(nullable = false)]
        document: Option<RankedDocument>,
    }

    #[derive(ToSchema)]
    struct RankedDocument {
        text: String,
    }
}
