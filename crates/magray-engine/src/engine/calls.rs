//! What programs ask of models: vectors, scores and cosines as calls that are awaited, texts as tokens and tokens as text.
//! Cancel-safe: dropping a future cancels its work. Long texts are read on threads beside the caller's.

use super::{Answer, Engine, EngineError, ModelSource, Output, PendingAnswer, Ranked, RankingWork, ScoredBy, Work};
use crate::encoder::EmbedError;
use crate::reading::{Reader, Reading};
use crate::spec::{Does, ModelSpec, Task};
use crate::tokenize::SpelledToken;

/// Texts are read by the thread that asks: what is large is read beside (`background`), several requests at a time.
const ONE: usize = 1;

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
    /// // A model of random weights, which reads only token ids.
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
        let asking: Vec<PendingAnswer> = works.into_iter().map(|work| self.ask(work)).collect();
        let mut answers = Vec::with_capacity(asking.len());
        for one in asking {
            answers.push(one.await);
        }
        answers
    }

    /// What people call a model.
    pub fn model_name(&self, model: usize) -> Option<&str> {
        (model < self.0.readers.len()).then(|| self.0.choices.packer().name(model))
    }

    /// Where a model comes from.
    pub fn model_source(&self, model: usize) -> Option<&ModelSource> {
        (model < self.0.readers.len()).then(|| self.0.choices.packer().source(model))
    }

    /// How many models there have been: their numbers are below this.
    pub fn models_len(&self) -> usize {
        self.0.readers.len()
    }

    /// What a model's files say of it.
    pub fn spec(&self, model: usize) -> Option<&ModelSpec> {
        self.0.readers.get(model).map(|reader| &reader.spec)
    }

    /// Texts to embed as work, with the named prompt of the model before each; without a name, with its default prompt if
    /// any. Texts that are longer than the model reads are cut, and say so.
    pub fn read<T: AsRef<str> + Sync>(
        &self,
        model: usize,
        texts: &[T],
        prompt: Option<&str>,
    ) -> Result<Work, EngineError> {
        self.read_by(ONE, model, texts, prompt)
    }

    /// As [`Engine::read`], by this many threads, for a program that has nothing else to do meanwhile.
    pub fn read_by<T: AsRef<str> + Sync>(
        &self,
        threads: usize,
        model: usize,
        texts: &[T],
        prompt: Option<&str>,
    ) -> Result<Work, EngineError> {
        Ok(work(model, self.reader(model)?.texts(texts, prompt, threads)?))
    }

    /// Texts to score with a classifier as work.
    pub fn read_scored<T: AsRef<str> + Sync>(&self, model: usize, texts: &[T]) -> Result<Work, EngineError> {
        Ok(work(model, self.reader(model)?.scored(texts, ONE)?))
    }

    /// Pairs of texts to score with a classifier as work.
    pub fn read_pairs<A, B>(&self, model: usize, pairs: &[(A, B)]) -> Result<Work, EngineError>
    where
        A: AsRef<str> + Sync,
        B: AsRef<str> + Sync,
    {
        Ok(work(model, self.reader(model)?.pairs(pairs, ONE)?))
    }

    /// Texts to embed, given as the model's own token ids, as work. The special tokens are put around those that lack them, and what
    /// is longer than the model reads is cut.
    pub fn read_ids(&self, model: usize, texts: Vec<Vec<u32>>) -> Result<Work, EngineError> {
        let reader = self.reader(model)?;
        reader.must_embed()?;
        let Some(tokenizer) = reader.tokenizer_if_any() else { return Ok(Work::from_ids(model, texts)) };
        let texts = texts.iter().map(|ids| tokenizer.complete(ids)).collect();
        Ok(Work { model, texts, ..Work::default() })
    }

    /// The tokens of a text one by one, cut to what the model reads; with the special ones around it if wanted.
    pub fn spell(&self, model: usize, text: &str, with_special: bool) -> Result<Vec<SpelledToken>, EngineError> {
        Ok(self.reader(model)?.tokenizer()?.spell(text, with_special).map_err(EmbedError::from)?)
    }

    /// The text of the model's own token ids, without the special ones if wanted.
    pub fn decode(&self, model: usize, ids: &[u32], skip_special: bool) -> Result<String, EngineError> {
        let reader = self.reader(model)?;
        // The error names a text by its index: there is only this one.
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= reader.spec.shape.vocab) {
            let vocab = reader.spec.shape.vocab;
            return Err(EmbedError::UnknownId { text: 0, id, vocab }.into());
        }
        Ok(reader.tokenizer()?.decode(ids, skip_special).map_err(EmbedError::from)?)
    }

    pub(super) fn reader(&self, model: usize) -> Result<&Reader, EngineError> {
        let there = self.0.readers.get(model).filter(|_| !self.0.later.is_gone(model));
        there.ok_or(EngineError::NoModel(model))
    }

    /// A query and texts to score against it as work: as pairs for a model that scores them, else as texts to embed, with
    /// the named prompt before each. A model of more than two labels ranks nothing.
    pub fn read_ranking<Q, T>(
        &self,
        model: usize,
        query: Q,
        texts: &[T],
        prompt: Option<&str>,
    ) -> Result<RankingWork, EngineError>
    where
        Q: AsRef<str>,
        T: AsRef<str> + Sync,
    {
        let spec = self.spec(model).ok_or(EngineError::NoModel(model))?;
        let query = query.as_ref();
        match &spec.task {
            Task::Classify(classify) => {
                let wrong = EmbedError::WrongTask { does: "knows several labels", wanted: "scores pairs or embeds" };
                let by = ScoredBy::labels(&classify.labels).ok_or(wrong)?;
                let pairs: Vec<(&str, &str)> = texts.iter().map(|text| (query, text.as_ref())).collect();
                Ok(RankingWork { work: self.read_pairs(model, &pairs)?, by })
            }
            Task::Generate(_) => {
                Err(EmbedError::WrongTask { does: "generates text", wanted: "scores pairs or embeds" }.into())
            }
            Task::Embed(_) => {
                let all: Vec<&str> = std::iter::once(query).chain(texts.iter().map(AsRef::as_ref)).collect();
                Ok(RankingWork { work: self.read(model, &all, prompt)?, by: ScoredBy::Vectors })
            }
        }
    }

    /// Reads texts of this many bytes: short ones here, long ones on the read threads.
    async fn read_in_background<T: Send + 'static>(
        &self,
        bytes: usize,
        read: impl FnOnce(&Self) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        if bytes <= Self::INLINE_BYTES_MAX {
            return read(self);
        }
        let own = self.clone();
        self.background(bytes, move || read(&own)).await?
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

fn work(model: usize, reading: Reading) -> Work {
    Work { model, texts: reading.texts, skip: reading.skip, ..Work::default() }
}
