//! The vectors of single tokens, by the API of text-embeddings-inference.
//! Neither pools nor scales the output of the model's last layer.

use axum::{extract::State, response::Response};
use magray_engine::engine::Output;

use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    requests::tei::{Direction, EmbedAllRequest},
    service::{ReadWork, Reading},
    writing::Json,
};

/// Turns texts into the vectors of their tokens, special ones included.
#[utoipa::path(
    post, path = "",
    request_body = EmbedAllRequest<'_>,
    responses((status = 200, description = "One vector a token, by text", body = Vec<Vec<Vec<f32>>>))
)]
pub(crate) async fn embed_all(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let read = body.read(&app, |app, body| read_embed_all(app, body.json()?)).await?;
    let tokens: Vec<usize> = read.work.texts.iter().map(|text| text.ids.len()).collect();
    let computed = app.compute(read).await?;
    computed
        .written(move |answer| {
            let mut json = Json::for_numbers(answer.values.len());
            let mut rows = answer.rows();
            json.list(tokens, |json, tokens| {
                json.list(rows.by_ref().take(tokens), |json, row| {
                    json.numbers(row);
                });
            });
            json
        })
        .await
}

fn read_embed_all(app: &App, request: EmbedAllRequest<'_>) -> Result<ReadWork, Problem> {
    let model = app.models().embedder(request.model.as_deref())?;
    if request.truncation_direction == Some(Direction::Left) {
        return Err(Problem::invalid("truncation_direction", "texts are cut at their end only: use Right"));
    }
    let how = Reading { model, param: "inputs", prompt: request.prompt_name.as_deref(), truncate: request.truncate };
    let mut read = app.read_input(request.inputs, how)?;
    // Tokens of a prompt have vectors like all others.
    (read.work.output, read.work.skip) = (Output::Tokens, 0);
    Ok(read)
}
