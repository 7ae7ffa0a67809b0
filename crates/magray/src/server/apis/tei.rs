//! The API of text-embeddings-inference: embeddings, reranking, classes, similarity, tokens.
//! Never cuts from the left.

use std::time::Instant;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use magray_engine::{engine::Answer, spec::Task};

use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    inputs::{Documents, Sequence, Sequences},
    lines::TextsBody,
    models::Does,
    ranking::Ranking,
    requests::tei::{
        AnyRequest, Direction, EmbedRequest, PredictRequest, RerankRequest, SimilarityInputs, SimilarityRequest,
    },
    scaling::Scaling,
    service::{ReadWork, Reading},
    vectors::{ranked, sigmoid, softmax},
    writing::Json,
};

/// Turns texts into vectors. Lines of JSON, each a text or an object with an `input`, are answered by a line each; the other
/// fields are then in the query.
#[utoipa::path(
    post, path = "",
    request_body = EmbedRequest<'_>,
    responses((status = 200, description = "One vector a text", body = Vec<Vec<f32>>))
)]
pub(crate) async fn embed(State(app): State<App>, body: TextsBody) -> Result<Response, Problem> {
    match body {
        TextsBody::Whole(body) => embed_whole(app, body).await,
        TextsBody::Lines(lines) => lines.embed(app, Some(true)),
    }
}

async fn embed_whole(app: App, body: Body) -> Result<Response, Problem> {
    let (read, scaling) = body.read(&app, |app, body| read_embed(app, body.json()?)).await?;
    let computed = app.compute(read).await?;
    let write = move |answer: &Answer| {
        let mut json = Json::for_numbers(answer.values.len());
        json.list(answer.rows(), |json, row| {
            json.numbers(&scaling.apply(row));
        });
        json
    };
    computed.written(write).await
}

fn read_embed(app: &App, request: EmbedRequest<'_>) -> Result<(ReadWork, Scaling), Problem> {
    let model = app.models().embedder(request.model.as_deref())?;
    app.models().get(model).check_dimensions(request.dimensions)?;
    if request.truncation_direction == Some(Direction::Left) {
        return Err(Problem::invalid("truncation_direction", "texts are cut at their end only: use Right"));
    }
    let (scaling, output) = Scaling::new(app, model, Some(request.normalize.unwrap_or(true)), request.dimensions);
    let how = Reading { model, param: "inputs", prompt: request.prompt_name.as_deref(), truncate: request.truncate };
    let mut read = app.read_input(request.inputs, how)?;
    read.work.output = output;
    Ok((read, scaling))
}

/// Puts texts in the order of how well they fit a query.
#[utoipa::path(
    post, path = "",
    operation_id = "tei_rerank",
    request_body = RerankRequest<'_>,
    responses((status = 200, description = "The texts' indices and scores, the best first", body = Vec<doc::Rank>))
)]
pub(crate) async fn rerank(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: RerankRequest<'_> = body.json()?;
        let model = app.models().find(request.model.as_deref(), Does::Rank)?;
        let returned = request.return_text == Some(true);
        let Documents(texts) = request.texts;
        let returned = returned.then(|| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>());
        let how = Reading { model, param: "texts", prompt: None, truncate: request.truncate };
        let ranking = app.read_ranking(Ranking { query: request.query, texts }, how)?;
        Ok((ranking, returned, request.raw_scores.unwrap_or(false)))
    };
    let (ranking, returned, wants_raw) = body.read(&app, read).await?;
    let (scores, computed) = app.rank(ranking, wants_raw).await?;
    let mut json = Json::for_numbers(scores.len() * 4);
    json.list(ranked(&scores), |json, index| {
        json.raw(r#"{"index":"#).whole(index);
        if let Some(returned) = &returned {
            json.raw(r#","text":"#).text(&returned[index]);
        }
        json.raw(r#","score":"#).number(scores[index]).raw("}");
    });
    Ok(computed.with_headers(json.into_response()))
}

struct Classes {
    labels: Vec<String>,
    is_single: bool,
    wants_raw: bool,
}

/// Classifies texts, or pairs of texts.
#[utoipa::path(
    post, path = "",
    request_body = PredictRequest<'_>,
    responses(
        (status = 200, description = "The classes of a text, or of each of several, the likeliest first", body = doc::Predicted),
    )
)]
pub(crate) async fn predict(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let (read, classes) = body.read(&app, |app, body| read_predict(app, body.json()?)).await?;
    let computed = app.compute(read).await?;
    let write = |json: &mut Json, row: &[f32]| {
        let scores = match row {
            _ if classes.wants_raw => row.to_vec(),
            [one] => vec![sigmoid(*one)],
            row => softmax(row),
        };
        json.list(ranked(&scores), |json, index| {
            let label = classes.labels.get(index).map_or("", String::as_str);
            json.raw(r#"{"score":"#).number(scores[index]).raw(r#","label":"#).text(label).raw("}");
        });
    };
    let mut json = Json::for_numbers(computed.answer.values.len() * 4);
    if classes.is_single {
        write(&mut json, computed.answer.rows().next().unwrap_or_default());
    } else {
        json.list(computed.answer.rows(), write);
    }
    Ok(computed.with_headers(json.into_response()))
}

fn read_predict(app: &App, request: PredictRequest<'_>) -> Result<(ReadWork, Classes), Problem> {
    let started = Instant::now();
    let model = app.models().find(request.model.as_deref(), Does::Classify)?;
    let labels = match app.engine().spec(model).map(|spec| &spec.task) {
        Some(Task::Classify(classify)) => classify.labels.clone(),
        _ => return Err(Problem::invalid("model", "this model embeds texts and knows no classes: use /embed")),
    };
    let (sequences, is_single) = match request.inputs {
        Sequences::Single(sequence) => (vec![sequence], true),
        Sequences::Batch(sequences) => (sequences, false),
    };
    let limits = app.limits();
    limits.check_count("inputs", sequences.len())?;
    for sequence in &sequences {
        match sequence {
            Sequence::One(text) => limits.check_texts("inputs", std::iter::once(text.as_ref()))?,
            Sequence::Pair(a, b) => limits.check_texts("inputs", [a.as_ref(), b.as_ref()].into_iter())?,
        }
    }
    let how = Reading { model, param: "inputs", prompt: None, truncate: request.truncate };
    let work = read_sequences(app, model, &sequences)?;
    let classes = Classes { labels, is_single, wants_raw: request.raw_scores.unwrap_or(false) };
    Ok((app.check_work(work, how, started)?, classes))
}

/// Texts and pairs may be mixed; the tokenizer reads them by kind, and the order is kept.
fn read_sequences(app: &App, model: usize, sequences: &[Sequence<'_>]) -> Result<magray_engine::engine::Work, Problem> {
    let one = |sequence: &Sequence<'_>| matches!(sequence, Sequence::One(_));
    if sequences.iter().all(one) {
        let texts = sequences.iter().filter_map(|sequence| match sequence {
            Sequence::One(text) => Some(text.as_ref()),
            Sequence::Pair(..) => None,
        });
        return Ok(app.engine().read_scored(model, &texts.collect::<Vec<_>>())?);
    }
    let mut work = magray_engine::engine::Work { model, ..Default::default() };
    for sequence in sequences {
        let read = match sequence {
            Sequence::One(text) => app.engine().read_scored(model, &[text.as_ref()])?,
            Sequence::Pair(a, b) => app.engine().read_pairs(model, &[(a.as_ref(), b.as_ref())])?,
        };
        work.texts.extend(read.texts);
    }
    Ok(work)
}

/// Compares sentences with one: the cosines of their vectors.
#[utoipa::path(
    post, path = "",
    request_body = SimilarityRequest<'_>,
    responses((status = 200, description = "One cosine a sentence", body = Vec<f32>))
)]
pub(crate) async fn similarity(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = |app: &App, body: &Body| {
        let request: SimilarityRequest<'_> = body.json()?;
        let model = app.models().embedder(request.model.as_deref())?;
        let parameters = request.parameters.as_ref();
        let how = Reading {
            model,
            param: "inputs",
            prompt: parameters.and_then(|parameters| parameters.prompt_name.as_deref()),
            truncate: parameters.and_then(|parameters| parameters.truncate),
        };
        let SimilarityInputs { source_sentence: query, sentences: Documents(texts) } = request.inputs;
        app.read_ranking(Ranking { query, texts }, how)
    };
    let ranking = body.read(&app, read).await?;
    let (scores, computed) = app.rank(ranking, false).await?;
    let mut json = Json::for_numbers(scores.len());
    json.numbers(&scores);
    Ok(computed.with_headers(json.into_response()))
}

/// Does what the first model does: embeds, or classifies. A sentence with others to compare is compared.
#[utoipa::path(
    post, path = "",
    request_body(content = doc::AnyRequest),
    responses((status = 200, description = "As /embed, /predict or /similarity", body = doc::AnyAnswer))
)]
pub(crate) async fn root(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let is_compared = body.read(&app, |_, body| Ok(body.json::<AnyRequest<'_>>()?.has_sentences())).await?;
    let first = app.models().find(None, Does::Embed)?;
    match app.models().get(app.models().first().unwrap_or(first)).does {
        _ if is_compared => similarity(State(app), body).await,
        Does::Embed => embed_whole(app, body).await,
        Does::Rank | Does::Classify => predict(State(app), body).await,
        Does::Generate => {
            Err(Problem::invalid("model", "the first model generates text: use one that embeds or classifies"))
        }
    }
}

/// The answers as the document describes them; they are written by hand.
#[expect(dead_code, reason = "only their descriptions are used")]
mod doc {
    use utoipa::ToSchema;

    #[derive(ToSchema)]
    pub(super) struct Rank {
        index: usize,
        #[schema(nullable = false)]
        text: Option<String>,
        score: f32,
    }

    #[derive(ToSchema)]
    pub(super) struct Prediction {
        score: f32,
        label: String,
    }

    #[derive(ToSchema)]
    #[serde(untagged)]
    pub(super) enum Predicted {
        Single(Vec<Prediction>),
        Batch(Vec<Vec<Prediction>>),
    }

    #[derive(ToSchema)]
    #[serde(untagged)]
    pub(super) enum AnyRequest {
        Embed(super::EmbedRequest<'static>),
        Predict(super::PredictRequest<'static>),
        Similarity(super::SimilarityRequest<'static>),
    }

    #[derive(ToSchema)]
    #[serde(untagged)]
    pub(super) enum AnyAnswer {
        Vectors(Vec<Vec<f32>>),
        Classes(Predicted),
        Cosines(Vec<f32>),
    }
}
