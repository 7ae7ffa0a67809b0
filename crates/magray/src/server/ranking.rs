//! Scores texts against a query: by a classifier that reads both, or by the cosine of their vectors.
//! Knows no API: those choose the words of question and answer.

use std::{borrow::Cow, time::Instant};

use super::{
    errors::Problem,
    models::Does,
    service::{Computed, ReadWork, Reading},
    state::App,
    vectors::{cosine, sigmoid},
};

/// A query and the texts to score, read.
pub(crate) struct ReadRanking {
    read: ReadWork,
    does: Does,
}

/// The texts to score.
pub(crate) struct Ranking<'a> {
    pub(crate) query: Cow<'a, str>,
    pub(crate) texts: Vec<Cow<'a, str>>,
}

impl App {
    /// Reads a query and the texts to score. Blocks as long as the tokenizer takes.
    pub(crate) fn read_ranking(&self, ranking: Ranking<'_>, how: Reading<'_>) -> Result<ReadRanking, Problem> {
        let started = Instant::now();
        let limits = self.live().limits;
        let Ranking { query, texts } = ranking;
        limits.check_texts("query", std::iter::once(query.as_ref()))?;
        limits.check_texts(how.param, texts.iter().map(|text| text.as_ref()))?;
        let does = self.models().get(how.model).does;
        let read = match does {
            Does::Classify => {
                return Err(Problem::invalid(
                    "model",
                    "this model knows several labels and ranks nothing: use /predict",
                ));
            }
            Does::Rank => {
                let pairs: Vec<(&str, &str)> = texts.iter().map(|text| (query.as_ref(), text.as_ref())).collect();
                self.check_work(self.engine().read_pairs(how.model, &pairs)?, how, started)?
            }
            Does::Embed => {
                let all: Vec<_> = std::iter::once(query).chain(texts).collect();
                self.check_work(self.engine().read(how.model, &all, how.prompt)?, how, started)?
            }
        };
        Ok(ReadRanking { read, does })
    }

    /// The scores, one a text, in the order of the texts. Those of a classifier lie between 0 and 1 unless the raw ones
    /// are wanted; those of vectors are their cosines.
    pub(crate) async fn rank(&self, ranking: ReadRanking, wants_raw: bool) -> Result<(Vec<f32>, Computed), Problem> {
        let ReadRanking { read, does } = ranking;
        let computed = self.compute(read).await?;
        let mut rows = computed.answer.rows();
        let scores = match does {
            Does::Rank | Does::Classify => {
                let score = |row: &[f32]| row.first().copied().unwrap_or_default();
                rows.map(|row| if wants_raw { score(row) } else { sigmoid(score(row)) }).collect()
            }
            Does::Embed => {
                let query = rows.next().unwrap_or_default();
                rows.map(|row| cosine(query, row)).collect()
            }
        };
        Ok((scores, computed))
    }
}
