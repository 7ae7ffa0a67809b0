//! What most programs want of an engine, each as one call that is awaited: vectors, scores, cosines, many works at once.
//! Cancel-safe: whoever drops a future takes its work back, and nothing of it is computed any more.

use super::{Answer, Asking, Engine, EngineError, Output, Ranked, Work};
use crate::encoder::EmbedError;
use crate::spec::Does;

impl Engine {
    /// Embeds texts, with the named prompt of the model before each; without a name, with its default prompt if any. Texts
    /// that are longer than the model reads are cut.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource};
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let answer = engine.embed(0, vec!["a river", "a cat"], None).await?;
    /// for vector in answer.rows() {
    ///     assert_eq!(vector.len(), answer.dimensions);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn embed<T>(&self, model: usize, texts: Vec<T>, prompt: Option<&str>) -> Result<Answer, EngineError>
    where
        T: AsRef<str> + Send + Sync + 'static,
    {
        let (bytes, prompt) = (bytes(&texts), prompt.map(str::to_owned));
        let read = move |engine: &Self| engine.read(model, &texts, prompt.as_deref());
        let work = self.read_in_background(bytes, read).await?;
        self.ask(work).await
    }

    /// The vectors of single tokens, special ones included, as the model's last layer leaves them: neither pooled nor
    /// scaled. It is computed on the CPU.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource};
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let vectors = engine.embed_tokens(0, vec!["a river", "a cat"], None).await?;
    /// for text in vectors.texts() {
    ///     println!("{} tokens, each with {} numbers", text.len(), vectors.answer.dimensions);
    /// }
    /// # assert_eq!(vectors.texts().map(|text| text.len()).sum::<usize>(), vectors.answer.tokens);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn embed_tokens<T>(
        &self,
        model: usize,
        texts: Vec<T>,
        prompt: Option<&str>,
    ) -> Result<TokenVectors, EngineError>
    where
        T: AsRef<str> + Send + Sync + 'static,
    {
        let (bytes, prompt) = (bytes(&texts), prompt.map(str::to_owned));
        let read = move |engine: &Self| engine.read(model, &texts, prompt.as_deref());
        let work = self.read_in_background(bytes, read).await?;
        let tokens = work.texts.iter().map(|text| text.ids.len()).collect();
        let answer = self.ask(Work { output: Output::Tokens, skip: 0, ..work }).await?;
        Ok(TokenVectors { tokens, answer })
    }

    /// Scores texts against a query: by a model that reads both, or else by the cosines of their vectors.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource};
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/xlm-roberta-classify");
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let texts = ["a kitten", "a car"];
    /// let ranked = engine.rerank(0, "a cat", texts.to_vec()).await?;
    /// for place in ranked.order() {
    ///     println!("{:.3} {}", ranked.scores[place], texts[place]);
    /// }
    /// # assert_eq!(ranked.scores.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn rerank<Q, T>(&self, model: usize, query: Q, texts: Vec<T>) -> Result<Ranked, EngineError>
    where
        Q: AsRef<str> + Send + 'static,
        T: AsRef<str> + Send + Sync + 'static,
    {
        let bytes = query.as_ref().len() + bytes(&texts);
        let read = move |engine: &Self| engine.read_ranking(model, query, &texts, None);
        let ranking = self.read_in_background(bytes, read).await?;
        let answer = self.ask(ranking.work).await?;
        Ok(Ranked { scores: ranking.by.scores(&answer, false), answer })
    }

    /// Tells how near texts are to one in their meaning: the cosines of their vectors, from -1 to 1.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource};
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
    /// # let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Folder(folder.into()).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let compared = engine.similarity(0, "a cat", vec!["a cat", "a river"]).await?;
    /// assert!(compared.scores[0] > 0.999);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn similarity<Q, T>(&self, model: usize, text: Q, others: Vec<T>) -> Result<Ranked, EngineError>
    where
        Q: AsRef<str> + Send + 'static,
        T: AsRef<str> + Send + Sync + 'static,
    {
        match self.spec(model).map(|spec| spec.does()) {
            None => Err(EngineError::NoModel(model)),
            Some(Does::Embed) => self.rerank(model, text, others).await,
            Some(_) => Err(EmbedError::WrongTask { does: "makes no vectors", wanted: "embeds texts" }.into()),
        }
    }

    /// Computes many works at once and awaits them all; the answers have the order of the works. One that fails does not
    /// harm the others. They share batches wherever they may, also with the work of other callers.
    ///
    /// ```
    /// # use magray_engine::engine::{Engine, EngineOptions, ModelSource, Work};
    /// // A model of random weights, which reads token ids alone.
    /// let engine = Engine::start(EngineOptions::on_cpu(vec![ModelSource::Synthetic("tiny".parse()?).into()]))?;
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let works = (1..=3).map(|id| Work::from_ids(0, vec![vec![id; 4]])).chain([Work::from_ids(0, vec![])]);
    /// let answers = engine.process_batch(works.collect()).await;
    /// assert!(answers[..3].iter().all(Result::is_ok));
    /// assert!(answers[3].is_err(), "a work without texts");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn process_batch(&self, works: Vec<Work>) -> Vec<Result<Answer, EngineError>> {
        // All are in the queue before the first is awaited.
        let asking: Vec<Asking> = works.into_iter().map(|work| self.ask(work)).collect();
        let mut answers = Vec::with_capacity(asking.len());
        for one in asking {
            answers.push(one.await);
        }
        answers
    }
}

/// The vectors of texts' tokens.
#[derive(Clone, Debug)]
pub struct TokenVectors {
    /// By text: how many tokens it has.
    pub tokens: Vec<usize>,
    /// The vectors, one row a token, and how they were computed.
    pub answer: Answer,
}

impl TokenVectors {
    /// By text: the vectors of its tokens.
    pub fn texts(&self) -> impl Iterator<Item = impl ExactSizeIterator<Item = &[f32]>> {
        let mut rows = &self.answer.values[..];
        self.tokens.iter().map(move |tokens| {
            let (text, rest) = rows.split_at(tokens * self.answer.dimensions);
            rows = rest;
            text.chunks_exact(self.answer.dimensions.max(1))
        })
    }
}

fn bytes<T: AsRef<str>>(texts: &[T]) -> usize {
    texts.iter().map(|text| text.as_ref().len()).sum()
}
