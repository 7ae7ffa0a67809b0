//! Scores texts against a query, within the limits of a request.
//! Knows no API; how texts are scored is the engine's.

use std::{borrow::Cow, time::Instant};

use magray_engine::engine::{RankingWork, ScoredBy};

use super::{
    app::App,
    errors::Problem,
    models::Does,
    service::{Computed, ReadWork, Reading},
};

pub(crate) struct ReadRanking {
    read: ReadWork,
    by: ScoredBy,
}

pub(crate) struct Ranking<'a> {
    pub(crate) query: Cow<'a, str>,
    pub(crate) texts: Vec<Cow<'a, str>>,
}

impl App {
    /// Reads a query and the texts to score. Blocks as long as the tokenizer takes.
    pub(crate) fn read_ranking(&self, ranking: Ranking<'_>, how: Reading<'_>) -> Result<ReadRanking, Problem> {
        let started = Instant::now();
        let limits = self.limits();
        let Ranking { query, texts } = ranking;
        limits.check_texts("query", std::iter::once(query.as_ref()))?;
        limits.check_texts(how.param, texts.iter().map(|text| text.as_ref()))?;
        let model = self.models().get(how.model);
        if model.does == Does::Classify && model.outputs > 2 {
            return Err(Problem::invalid("model", "this model knows several labels and ranks nothing: use /predict"));
        }
        let RankingWork { work, by } = self.engine().read_ranking(how.model, query, &texts, how.prompt)?;
        Ok(ReadRanking { read: self.check_work(work, how, started)?, by })
    }

    /// The scores of texts by the first model that ranks. Blocks no thread of the runtime.
    pub(crate) async fn rank_texts(&self, query: &str, texts: Vec<String>) -> Result<Vec<f32>, Problem> {
        let model = self.models().find(None, Does::Rank)?;
        let (query, bytes) = (query.to_owned(), texts.iter().map(String::len).sum());
        let read = self.read(bytes, move |app| {
            let how = Reading { model, param: "query", prompt: None, truncate: None };
            let texts = texts.into_iter().map(Cow::Owned).collect();
            app.read_ranking(Ranking { query: Cow::Owned(query), texts }, how)
        });
        Ok(self.rank(read.await?, false).await?.0)
    }

    /// The scores, one a text, in the order of the texts. Those of a classifier lie between 0 and 1 unless the raw ones
    /// are wanted; those of vectors are their cosines.
    pub(crate) async fn rank(&self, ranking: ReadRanking, wants_raw: bool) -> Result<(Vec<f32>, Computed), Problem> {
        let computed = self.compute(ranking.read).await?;
        Ok((ranking.by.scores(&computed.answer, wants_raw), computed))
    }
}
