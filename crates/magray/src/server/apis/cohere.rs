//! Cohere's API, both versions: embeddings in several encodings, and reranking.
//! Reads no images, and cuts no text at its start.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::{engine::Answer, spec::Task};

use super::reranking;
use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    inputs::{Documents, Input},
    request_id,
    requests::{
        cohere::{EmbedRequest, Encoding, InputType, Parts, Truncate},
        openai::RerankRequest,
    },
    service::{ReadWork, Reading},
    vectors::{bytes, cut, signs, unit},
    writing::Json,
};

impl InputType {
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

struct Finish {
    model: usize,
    /// Without any, a version 1 answer has bare vectors.
    encodings: Vec<Encoding>,
    dimensions: Option<usize>,
    /// Whether the model gives vectors of length 1.
    has_unit_length: bool,
}

/// Turns texts into vectors.
#[utoipa::path(
    post, path = "",
    operation_id = "cohere_embed",
    request_body = EmbedRequest<'_>,
    responses((status = 200, description = "The vectors, by encoding", body = doc::Embedded))
)]
pub(crate) async fn embed(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let mut request: EmbedRequest<'_> = body.json()?;
        let wanted = request.embedding_types.get_or_insert_default();
        if wanted.is_empty() {
            wanted.push(Encoding::Float);
        }
        read_embed(app, request)
    };
    let (read, finish) = body.read(&app, read).await?;
    let computed = app.compute(read).await?;
    let write = move |answer: &Answer| {
        let mut json = Json::for_numbers(answer.values.len() * finish.encodings.len());
        start(&mut json).raw(r#","response_type":"embeddings_by_type","model":"#);
        json.text(&app.models().get(finish.model).name).raw(r#","embeddings":"#);
        finish.write(&mut json, answer);
        json.raw(",").raw(META).raw(r#""billed_units":{"input_tokens":"#).whole(answer.tokens).raw("}}}");
        json
    };
    computed.written(write).await
}

/// Turns texts into vectors, by version 1: bare vectors, or by encoding where encodings are named.
#[utoipa::path(
    post, path = "",
    operation_id = "cohere_embed_v1",
    request_body = EmbedRequest<'_>,
    responses((status = 200, description = "The texts and their vectors", body = doc::EmbeddedV1))
)]
pub(crate) async fn embed_v1(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: EmbedRequest<'_> = body.json()?;
        let Some(Documents(texts)) = &request.texts else {
            return Err(Problem::invalid("texts", "there is no text in the request: version 1 takes texts alone"));
        };
        let mut texts_json = Json::default();
        texts_json.list(texts, |json, text| {
            json.text(text);
        });
        let (read, finish) = read_embed(app, request)?;
        Ok((read, finish, texts_json))
    };
    let (read, finish, texts_json) = body.read(&app, read).await?;
    let computed = app.compute(read).await?;
    let write = move |answer: &Answer| {
        let mut json = Json::for_numbers(answer.values.len() * finish.encodings.len().max(1));
        let kind = if finish.encodings.is_empty() { "embeddings_floats" } else { "embeddings_by_type" };
        start(&mut json).raw(r#","response_type":"#).text(kind).raw(r#","embeddings":"#);
        finish.write(&mut json, answer);
        json.raw(r#","texts":"#).append(&texts_json).raw(r#","meta":{"api_version":{"version":"1"},"#);
        json.raw(r#""billed_units":{"input_tokens":"#).whole(answer.tokens).raw("}}}");
        json
    };
    computed.written(write).await
}

fn read_embed(app: &App, request: EmbedRequest<'_>) -> Result<(ReadWork, Finish), Problem> {
    if request.input_type == Some(InputType::Image) || request.images.is_some_and(|images| !images.is_empty()) {
        return Err(Problem::invalid("images", "images are not supported: send texts"));
    }
    let truncate = match request.truncate {
        Some(Truncate::Start) => return Err(Problem::invalid("truncate", "texts are cut at their end only: use END")),
        Some(truncate) => Some(truncate == Truncate::End),
        None => None,
    };
    let model = app.models().embedder(request.model.as_deref())?;
    app.models().get(model).check_dimensions(request.output_dimension)?;
    let texts = match (request.texts, request.inputs) {
        (Some(Documents(texts)), None) => texts,
        (None, Some(inputs)) => inputs
            .into_iter()
            .map(Parts::join)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|wrong| Problem::invalid("inputs", wrong))?,
        (Some(_), Some(_)) => return Err(Problem::invalid("texts", "send texts or inputs, not both")),
        (None, None) => return Err(Problem::invalid("texts", "there is no text in the request")),
    };
    let prompt = request.input_type.and_then(|kind| {
        let known = &app.engine().spec(model)?.prompts;
        kind.prompts().iter().copied().find(|name| known.contains_key(*name))
    });
    let how = Reading { model, param: "texts", prompt, truncate };
    let read = app.read_input(Input::Texts { texts, is_single: false }, how)?;
    let mut encodings = Vec::new();
    for encoding in request.embedding_types.unwrap_or_default() {
        if !encodings.contains(&encoding) {
            encodings.push(encoding);
        }
    }
    let task = app.engine().spec(model).map(|spec| &spec.task);
    let has_unit_length = matches!(task, Some(Task::Embed(embed)) if embed.normalize);
    Ok((read, Finish { model, encodings, dimensions: request.output_dimension, has_unit_length }))
}

impl Finish {
    fn write(&self, json: &mut Json, answer: &Answer) {
        if self.encodings.is_empty() {
            return self.write_rows(json, answer, Encoding::Float);
        }
        json.raw("{");
        for (at, encoding) in self.encodings.iter().enumerate() {
            json.raw(if at > 0 { "," } else { "" }).text(encoding.name()).raw(":");
            self.write_rows(json, answer, *encoding);
        }
        json.raw("}");
    }

    fn write_rows(&self, json: &mut Json, answer: &Answer, encoding: Encoding) {
        json.list(answer.rows(), |json, row| {
            let row = cut(row, self.dimensions);
            match encoding {
                // The range of bytes is that of a vector of length 1.
                Encoding::Int8 | Encoding::Uint8 if !self.has_unit_length => encoding.write(json, &unit(&row)),
                _ => encoding.write(json, &row),
            }
        });
    }
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
            Self::Float => json.numbers(row),
            Self::Base64 => json.base64(row),
            Self::Int8 => json.list(bytes(row), |json, byte| json.byte(byte)),
            Self::Uint8 => json.list(bytes(row), |json, byte| {
                json.whole((i16::from(byte) + 128) as usize);
            }),
            Self::Binary => json.list(signs(row), |json, byte| json.byte((i16::from(byte) - 128) as i8)),
            Self::Ubinary => json.list(signs(row), |json, byte| {
                json.whole(byte.into());
            }),
        };
    }
}

/// Puts documents in the order of how well they fit a query.
#[utoipa::path(
    post, path = "",
    operation_id = "cohere_rerank",
    request_body = RerankRequest<'_>,
    responses(
        (status = 200, description = "The documents' indices and scores, the best first", body = doc::Reranked),
    )
)]
pub(crate) async fn rerank(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let reranked = reranking::rerank(&app, body).await?;
    let mut json = reranked.json();
    start(&mut json).raw(r#","results":"#);
    reranked.write(&mut json);
    json.raw(",").raw(META).raw(r#""billed_units":{"search_units":1}}}"#);
    Ok(reranked.computed.with_headers(json.into_response()))
}

const META: &str = r#""meta":{"api_version":{"version":"2"},"#;

fn start(json: &mut Json) -> &mut Json {
    let id = request_id::new();
    json.raw(r#"{"id":"#).text(id.to_str().unwrap_or_default())
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
    #[schema(as = CohereEmbeddedV1)]
    pub(super) struct EmbeddedV1 {
        id: String,
        /// `embeddings_floats`, or `embeddings_by_type`.
        response_type: String,
        embeddings: EitherEmbeddings,
        texts: Vec<String>,
        meta: EmbedMeta,
    }

    #[derive(ToSchema)]
    #[schema(as = CohereEitherEmbeddings)]
    #[serde(untagged)]
    enum EitherEmbeddings {
        Floats(Vec<Vec<f32>>),
        ByType(ByType),
    }

    #[derive(ToSchema)]
    #[schema(as = CohereEmbeddings)]
    struct ByType {
        #[schema(nullable = false)]
        float: Option<Vec<Vec<f32>>>,
        #[schema(nullable = false)]
        base64: Option<Vec<String>>,
        #[schema(nullable = false)]
        int8: Option<Vec<Vec<i8>>>,
        #[schema(nullable = false)]
        uint8: Option<Vec<Vec<u8>>>,
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
        results: Vec<super::reranking::Ranked>,
        meta: RerankMeta,
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
