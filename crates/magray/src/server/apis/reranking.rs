//! Reranking as Cohere and those beside OpenAI ask for it: one question, and answers that differ in their head and tail.
//! Leaves that head and tail to them.

use std::sync::Arc;

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

/// Documents with their scores.
pub(super) struct Reranked {
    pub(super) model: usize,
    pub(super) computed: Computed,
    scores: Vec<f32>,
    /// How many of the best are told.
    top_n: usize,
    /// The documents, where they are wanted back.
    documents: Option<Vec<String>>,
}

/// Reads the question and computes the scores.
pub(super) async fn rerank(app: &App, body: Body) -> Result<Reranked, Problem> {
    let body = Arc::new(body);
    let own = Arc::clone(&body);
    let read = move |app: &App| {
        let request: RerankRequest<'_> = own.json()?;
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
    let (ranking, model, top_n, documents) = app.read(body.len(), read).await?;
    let (scores, computed) = app.rank(ranking, false).await?;
    Ok(Reranked { model, computed, scores, top_n, documents })
}

impl Reranked {
    /// Room for the answer.
    pub(super) fn json(&self) -> Json {
        Json::for_numbers(self.scores.len() * 4)
    }

    /// Writes the array of places and scores, the best first.
    pub(super) fn write(&self, json: &mut Json) {
        json.list(ranked(&self.scores).into_iter().take(self.top_n), |json, place| {
            json.raw(r#"{"index":"#).whole(place).raw(r#","relevance_score":"#).number(self.scores[place]);
            if let Some(documents) = &self.documents {
                json.raw(r#","document":{"text":"#).text(&documents[place]).raw("}");
            }
            json.raw("}");
        });
    }
}
