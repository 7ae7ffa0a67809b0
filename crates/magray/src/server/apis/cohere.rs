//! Cohere's API, version 2: embeddings in several encodings, and reranking.
//! Reads no images, and quantises to no bytes: their ranges would be invented.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::openai::check_dimensions;
use crate::server::{
    body::Body,
    errors::{CohereError, Problem},
    inputs::{Documents, Input},
    models::Does,
    ranking::Ranking,
    request_id,
    service::{ReadWork, Reading},
    state::App,
    vectors::{cut, ranked, signs},
    writing::Json,
};

/// Cohere's version 1 asks for ranks at `/v1/rerank`, whose answers have all that its clients read.
pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(embed)).routes(routes!(rerank))
}

/// Texts to embed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbedRequest)]
struct EmbedRequest<'a> {
    /// Without it, the first model that embeds.
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    /// The texts; or else `inputs`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Vec<String>>, min_items = 1)]
    texts: Option<Documents<'a>>,
    /// Texts in parts.
    #[serde(borrow, default)]
    inputs: Option<Vec<Parts<'a>>>,
    /// Pictures are not read here.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    images: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(default)]
    input_type: Option<InputType>,
    #[serde(default)]
    embedding_types: Option<Vec<Encoding>>,
    #[serde(default)]
    #[schema(minimum = 1)]
    output_dimension: Option<usize>,
    #[serde(default)]
    truncate: Option<Truncate>,
}

/// A text that comes in parts, which are read one after the other.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereInput)]
struct Parts<'a> {
    #[serde(borrow)]
    content: Vec<Part<'a>>,
}

/// A part of a text.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereInputPart)]
struct Part<'a> {
    /// `text`.
    #[serde(borrow, default)]
    r#type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

/// What the vectors are for: it chooses the model's prompt where it has one for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum InputType {
    SearchDocument,
    SearchQuery,
    Classification,
    Clustering,
    Image,
}

impl InputType {
    /// What models call their prompt for it.
    fn prompts(self) -> &'static [&'static str] {
        match self {
            Self::SearchDocument => &["search_document", "document", "passage"],
            Self::SearchQuery => &["search_query", "query"],
            Self::Classification => &["classification", "Classification"],
            Self::Clustering => &["clustering", "Clustering"],
            Self::Image => &[],
        }
    }
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbeddingType)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    /// 32-bit floats in base64.
    Base64,
    /// The signs of the numbers, eight a byte, as numbers from -128 on.
    Binary,
    /// The signs of the numbers, eight a byte, as numbers from 0 on.
    Ubinary,
    /// Refused: the range that Cohere's models have for it belongs to them.
    Int8,
    /// Refused, as `int8`.
    Uint8,
}

/// Where texts that are too long are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereTruncate)]
#[serde(rename_all = "UPPERCASE")]
enum Truncate {
    None,
    /// Refused: texts are cut at their end only.
    Start,
    End,
}

/// What is written of an embedding.
struct Finish {
    model: usize,
    encodings: Vec<Encoding>,
    dimensions: Option<usize>,
}

/// Turns texts into vectors.
#[utoipa::path(
    post, path = "/v2/embed", tag = "cohere", security(("key" = []), ()),
    request_body = EmbedRequest<'_>,
    responses(
        (status = 200, description = "The vectors, by encoding", body = doc::Embedded),
        CohereProblems,
    )
)]
async fn embed(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let body = Arc::new(body);
    let own = Arc::clone(&body);
    let (read, finish) = app.read(body.len(), move |app| read_embed(app, own.json()?)).await?;
    let computed = app.compute(read).await?;
    let answer = &computed.answer;
    let mut json = Json::for_numbers(answer.values.len() * finish.encodings.len());
    start(&mut json).raw(r#","response_type":"embeddings_by_type","model":"#);
    json.text(&app.models().get(finish.model).name).raw(r#","embeddings":{"#);
    for (at, encoding) in finish.encodings.iter().enumerate() {
        json.raw(if at > 0 { "," } else { "" }).text(encoding.name()).raw(":");
        json.list(answer.rows(), |json, row| encoding.write(json, &cut(row, finish.dimensions)));
    }
    json.raw("},").raw(META).raw(r#""billed_units":{"input_tokens":"#).whole(answer.tokens).raw("}}}");
    Ok(computed.tell(json.into_response()))
}

fn read_embed(app: &App, request: EmbedRequest<'_>) -> Result<(ReadWork, Finish), Problem> {
    if request.input_type == Some(InputType::Image) || request.images.is_some_and(|images| !images.is_empty()) {
        return Err(Problem::invalid("images", "texts alone are read here, and no images"));
    }
    let truncate = match request.truncate {
        Some(Truncate::Start) => return Err(Problem::invalid("truncate", "texts are cut at their end only: use END")),
        Some(truncate) => Some(truncate == Truncate::End),
        None => None,
    };
    let model = app.models().find(request.model.as_deref(), Does::Embed)?;
    check_dimensions(request.output_dimension, app.models().get(model))?;
    let encodings = encodings(request.embedding_types)?;
    let texts = match (request.texts, request.inputs) {
        (Some(Documents(texts)), None) => texts,
        (None, Some(inputs)) => inputs.into_iter().map(Parts::join).collect::<Result<_, _>>()?,
        (Some(_), Some(_)) => return Err(Problem::invalid("texts", "send texts or inputs, not both")),
        (None, None) => return Err(Problem::invalid("texts", "there is no text in the request")),
    };
    let prompt = request.input_type.and_then(|kind| {
        let known = &app.engine().spec(model)?.prompts;
        kind.prompts().iter().copied().find(|name| known.contains_key(*name))
    });
    let how = Reading { model, param: "texts", prompt, truncate };
    let read = app.read_input(Input::Texts { texts, is_single: false }, how)?;
    Ok((read, Finish { model, encodings, dimensions: request.output_dimension }))
}

/// The encodings that are wanted, each once.
fn encodings(wanted: Option<Vec<Encoding>>) -> Result<Vec<Encoding>, Problem> {
    let mut all = Vec::new();
    for encoding in wanted.filter(|wanted| !wanted.is_empty()).unwrap_or_else(|| vec![Encoding::Float]) {
        if matches!(encoding, Encoding::Int8 | Encoding::Uint8) {
            let message = "int8 and uint8 are not written here: use float, base64, binary or ubinary";
            return Err(Problem::invalid("embedding_types", message));
        }
        if !all.contains(&encoding) {
            all.push(encoding);
        }
    }
    Ok(all)
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Base64 => "base64",
            Self::Binary => "binary",
            Self::Ubinary => "ubinary",
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
        }
    }

    fn write(self, json: &mut Json, row: &[f32]) {
        match self {
            Self::Float | Self::Int8 | Self::Uint8 => json.numbers(row),
            Self::Base64 => json.base64(row),
            Self::Binary => json.list(signs(row), |json, byte| {
                json.raw(&(i16::from(byte) - 128).to_string());
            }),
            Self::Ubinary => json.list(signs(row), |json, byte| {
                json.whole(byte.into());
            }),
        };
    }
}

impl<'a> Parts<'a> {
    /// The parts as one text.
    fn join(self) -> Result<Cow<'a, str>, Problem> {
        let mut whole: Option<Cow<'a, str>> = None;
        for part in self.content {
            let Some(text) = part.text.filter(|_| part.r#type.is_none_or(|kind| kind == "text")) else {
                return Err(Problem::invalid("inputs", "parts with a text alone are read here"));
            };
            whole = Some(match whole {
                Some(before) => Cow::Owned(format!("{before}\n{text}")),
                None => text,
            });
        }
        whole.ok_or_else(|| Problem::invalid("inputs", "an input has no part"))
    }
}

/// A query, and documents to put in order.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereRerankRequest)]
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
    post, path = "/v2/rerank", tag = "cohere", security(("key" = []), ()),
    request_body = RerankRequest<'_>,
    responses(
        (status = 200, description = "The documents' places and scores, the best first", body = doc::Reranked),
        CohereProblems,
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
        Ok((ranking, request.top_n.unwrap_or(usize::MAX), returned))
    };
    let (ranking, top_n, returned) = app.read(body.len(), read).await?;
    let (scores, computed) = app.rank(ranking, false).await?;
    let mut json = Json::for_numbers(scores.len() * 4);
    start(&mut json).raw(r#","results":"#);
    json.list(ranked(&scores).into_iter().take(top_n), |json, place| {
        json.raw(r#"{"index":"#).whole(place).raw(r#","relevance_score":"#).number(scores[place]);
        if let Some(returned) = &returned {
            json.raw(r#","document":{"text":"#).text(&returned[place]).raw("}");
        }
        json.raw("}");
    });
    json.raw(",").raw(META).raw(r#""billed_units":{"search_units":1}}}"#);
    Ok(computed.tell(json.into_response()))
}

const META: &str = r#""meta":{"api_version":{"version":"2"},"#;

/// The opening of an answer, with a name of its own.
fn start(json: &mut Json) -> &mut Json {
    let id = request_id::new();
    json.raw(r#"{"id":"#).text(id.to_str().unwrap_or_default())
}

/// How requests to compute can be refused, in the shape of Cohere's API.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "only its description is used")]
enum CohereProblems {
    /// The body is no JSON.
    #[response(status = 400)]
    Malformed(CohereError),
    /// There is no key, or a wrong one.
    #[response(status = 401)]
    Unauthorised(CohereError),
    /// There is no such model.
    #[response(status = 404)]
    NoSuchModel(CohereError),
    /// The body came too slowly.
    #[response(status = 408)]
    TooSlow(CohereError),
    /// It is too much for one request.
    #[response(status = 413)]
    TooLarge(CohereError),
    /// A field is wrong, or the model does something else.
    #[response(status = 422)]
    Invalid(CohereError),
    /// There is too much to do, or the key asked too often: see Retry-After.
    #[response(status = 429)]
    Busy(CohereError),
    /// No device computes, or not in time.
    #[response(status = 503)]
    Unavailable(CohereError),
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    #[schema(as = CohereEmbedded)]
    pub(super) struct Embedded {
        id: String,
        /// `embeddings_by_type`.
        response_type: String,
        model: String,
        embeddings: ByType,
        meta: EmbedMeta,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereEmbeddings)]
    struct ByType {
        #[schema(nullable = false)]
        float: Option<Vec<Vec<f32>>>,
        #[schema(nullable = false)]
        base64: Option<Vec<String>>,
        #[schema(nullable = false)]
        binary: Option<Vec<Vec<i8>>>,
        #[schema(nullable = false)]
        ubinary: Option<Vec<Vec<u8>>>,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereEmbedMeta)]
    struct EmbedMeta {
        api_version: ApiVersion,
        billed_units: EmbedUnits,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereApiVersion)]
    struct ApiVersion {
        version: String,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereEmbedUnits)]
    struct EmbedUnits {
        input_tokens: usize,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereReranked)]
    pub(super) struct Reranked {
        id: String,
        results: Vec<Ranked>,
        meta: RerankMeta,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereRanked)]
    struct Ranked {
        index: usize,
        relevance_score: f32,
        #[schema(nullable = false)]
        document: Option<Document>,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereDocument)]
    struct Document {
        text: String,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereRerankMeta)]
    struct RerankMeta {
        api_version: ApiVersion,
        billed_units: RerankUnits,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereRerankUnits)]
    struct RerankUnits {
        search_units: usize,
    }
}
