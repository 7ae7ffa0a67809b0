//! Reranking for Cohere's clients and OpenAI's: one request, and answers that differ around the same results.
//! Writes those results only.

use crate::server::{
    app::App,
    body::Body,
    errors::Problem,
    inputs::Documents,
    models::Does,
    ranking::Ranking,
    requests::openai::RerankRequest,
    service::{Computed, Reading},
    vectors::ranked,
    writing::Json,
};

/// A document's score, as the OpenAPI document describes it.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its description is used")]
pub(super) struct Ranked {
    index: usize,
    relevance_score: f32,
    #[schema(nullable = false)]
    document: Option<RankedDocument>,
}

#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its description is used")]
struct RankedDocument {
    text: String,
}

pub(super) struct Reranked {
    pub(super) model: usize,
    pub(super) computed: Computed,
    scores: Vec<f32>,
    top_n: usize,
    documents: Option<Vec<String>>,
}

pub(super) async fn rerank(app: &App, body: Body) -> Result<Reranked, Problem> {
    let read = |app: &App, body: &Body| {
        let request: RerankRequest<'_> = body.json()?;
        if request.top_n == Some(0) {
            return Err(Problem::invalid("top_n", "top_n is at least 1"));
        }
        let model = app.models().find(request.model.as_deref(), Does::Rank)?;
        let Documents(texts) = request.documents;
        let is_returned = request.return_documents == Some(true);
        let documents = is_returned.then(|| texts.iter().map(|text| text.to_string()).collect());
        let how = Reading { model, param: "documents", prompt: None, truncate: None };
        let ranking = app.read_ranking(Ranking { query: request.query, texts }, how)?;
        Ok((ranking, model, request.top_n.unwrap_or(usize::MAX), documents))
    };
    let (ranking, model, top_n, documents) = body.read(app, read).await?;
    let (scores, computed) = app.rank(ranking, false).await?;
    Ok(Reranked { model, computed, scores, top_n, documents })
}

impl Reranked {
    pub(super) fn json(&self) -> Json {
        Json::for_numbers(self.scores.len() * 4)
    }

    pub(super) fn write(&self, json: &mut Json) {
        json.list(ranked(&self.scores).into_iter().take(self.top_n), |json, index| {
            json.raw(r#"{"index":"#).whole(index).raw(r#","relevance_score":"#).number(self.scores[index]);
            if let Some(documents) = &self.documents {
                json.raw(r#","document":{"text":"#).text(&documents[index]).raw("}");
            }
            json.raw("}");
        });
    }
}
